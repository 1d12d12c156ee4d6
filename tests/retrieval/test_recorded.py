"""Files of JSON beside a checkpoint, or of a saved model: what a run, a calibration and `save_pretrained` record."""

import json
import shutil
from pathlib import Path

import pytest

import demo_sdtps
from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import read_run
from demo_sdtps.modeling.checkpoints.loading import read_checkpoint
from demo_sdtps.reports.run_report import evaluated_run
from demo_sdtps.retrieval.calibration import calibration_file, stored_calibration
from demo_sdtps.retrieval.extractor import Extractor

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = ()
FIT = {"slope": 1, "offset": 1, "limits": {"0.01": 1}}
CALIBRATION = {"checkpoint_sha256": "", "settings": {}, "patterns": {"1": {"RGB, RGB": FIT}}}
WRONG_FITS = [
    {"x": {"RGB, RGB": FIT}},
    {"1": {"RGB, XY": FIT}},
    {"1": {"RGB, RGB": {**FIT, "limits": {"x": 1}}}},
]


@pytest.mark.parametrize("content", ["[1]", '{"status": 1}', "{"])
def test_files_beside_a_checkpoint_that_lack_their_keys(weights, tmp_path, content):
    """What a run and save_pretrained record is left out; a calibration is refused."""
    path = Path(shutil.copy(weights, tmp_path / "last.pth"))
    for name in ("run.json", "metrics.json", "config.json"):
        (tmp_path / name).write_text(content)
    assert demo_sdtps.load(path, "MODEL.DEVICE", "cpu").origin["metrics"] is None
    calibration_file(path).write_text(content)
    with pytest.raises(UserError, match=r"is damaged, .*; run demo-sdtps calibrate again"):
        demo_sdtps.load(path, "MODEL.DEVICE", "cpu")


def test_values_of_other_types_in_a_calibration_are_refused(weights, tmp_path):
    path = Path(shutil.copy(weights, tmp_path / "last.pth"))
    checkpoint = read_checkpoint(path)
    for record in (CALIBRATION, *(CALIBRATION | {"patterns": fits} for fits in WRONG_FITS)):
        calibration_file(path).write_text(json.dumps(record))
        if record is CALIBRATION:  # of other weights, but whole
            assert stored_calibration(checkpoint) is None
            continue
        with pytest.raises(UserError, match="damaged"):
            stored_calibration(checkpoint)


@pytest.mark.parametrize("content", ["{", "[1, 2]"])
def test_a_record_of_a_run_that_is_damaged_counts_as_missing(tmp_path, caplog, content):
    (tmp_path / "run.json").write_text(content)
    assert read_run(tmp_path) == {} and "run.json is damaged" in caplog.messages[-1]
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(UserError, match=r"no metrics\.json with evaluated epochs"):
        evaluated_run(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": {"cameras": 5}},
        {"origin": {"calibration": CALIBRATION | {"patterns": WRONG_FITS[1]}}},
        {"settings": 3},
    ],
    ids=str,
)
def test_a_saved_model_with_values_of_other_types_is_refused(weights, tmp_path, wrong):
    """By `load` and by the hub's own call, which hands them over."""
    demo_sdtps.load(weights, "MODEL.DEVICE", "cpu").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | wrong))
    with pytest.raises(UserError, match=r"config\.json is damaged.*save the model again"):
        demo_sdtps.load(tmp_path, "MODEL.DEVICE", "cpu")
    with pytest.raises(UserError, match="no configuration of the model"):
        Extractor.from_pretrained(tmp_path)
