"""Files of JSON beside a checkpoint, or of a saved model: what a run, a calibration and `save_pretrained` record."""

import shutil
from pathlib import Path

import pytest

import demo_sdtps
from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import read_run
from demo_sdtps.reports.run_report import evaluated_run
from demo_sdtps.retrieval.calibration import calibration_file

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = ()


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


@pytest.mark.parametrize("content", ["{", "[1, 2]"])
def test_a_record_of_a_run_that_is_damaged_counts_as_missing(tmp_path, caplog, content):
    (tmp_path / "run.json").write_text(content)
    assert read_run(tmp_path) == {} and "run.json is damaged" in caplog.messages[-1]
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(UserError, match=r"no metrics\.json with evaluated epochs"):
        evaluated_run(tmp_path)
