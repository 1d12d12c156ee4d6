"""Training, evaluation, export and images on a tiny copy of every data set, as a user types it."""

import shlex
import shutil

import pytest
import torch
from commands import (
    BACKBONE_WIDTH,
    cli_args_for,
    load_records,
    near,
    parse_table,
    read_scores,
    table_rows,
)
from triplets import WRITERS

from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net

pytestmark = pytest.mark.usefixtures("shallow")

SPLITS = ("query", "gallery")
MATCHES = {"RGBNT201": 4, "RGBNT100": 4, "MSVR310": 3, "WMVeID863": 4, "Synthetic": 4}
"""Of a query in the gallery: images from the other two cameras in both scenes; in MSVR310, from the other scene."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "RGBNT201")) for name in WRITERS],
)
def test_a_data_set_is_trained_on_tested_and_exported(tmp_path, success, exported_arrays, name):
    expected = WRITERS[name](tmp_path)
    words = cli_args_for(
        tmp_path, "DATASETS.NAMES", name, "SOLVER.EVAL_UNTRAINED", "False", "SOLVER.MAX_EPOCHS", "1"
    )
    success(train_net.main, *words, "OUTPUT_DIR", tmp_path / "run")
    counts = ", ".join(f"{len(samples)} {split}" for split, samples in expected.items())
    assert f"{name}: {counts}" in (tmp_path / "run" / "log.txt").read_text()
    (record,) = load_records(tmp_path / "run")
    assert record["epoch"] == 1 and record["loss"] > 0
    content = torch.load(tmp_path / "run" / "last.pth", weights_only=True)
    assert (content["dataset"], content["num_class"], content["camera_num"]) == (name, 5, 8)

    words += ["--weight", tmp_path / "run" / "last.pth"]
    stdout = success(test_net.main, *words, "--json", tmp_path / "x.json")
    scores, sides = read_scores(tmp_path / "x.json"), (len(expected["query"]), MATCHES[name])
    assert near(scores, *sides) == record["patterns"] and parse_table(stdout) == table_rows(scores)

    for split in SPLITS:
        actual = exported_arrays(*words, "--split", split)
        assert actual["ids"].tolist() == [sample.identity for sample in expected[split]]
        assert actual["cams"].tolist() == [sample.camera for sample in expected[split]]
        assert actual["scenes"].tolist() == [sample.scene for sample in expected[split]]
        assert actual["paths"].tolist() == [list(sample.paths) for sample in expected[split]]
        assert actual["features"].shape == (len(expected[split]), 6 * BACKBONE_WIDTH)


def test_what_is_probably_a_mistake_in_the_data_is_a_warning(own_root, tmp_path, success):
    """A person of training in the test, seen by one camera alone: no unseen identity, and a query without a match."""

    def warnings_of_a_run():
        opts = (
            "SOLVER.EVAL_UNTRAINED False SOLVER.MAX_EPOCHS 1 MODEL.PRETRAIN_PATH_T '' --overwrite"
        )
        words = cli_args_for(own_root, *shlex.split(opts), "OUTPUT_DIR", tmp_path / "run")
        success(train_net.main, *words)
        log = (tmp_path / "run" / "log.txt").read_text()
        return [line for line in log.splitlines() if " WARNING " in line]

    (random,) = warnings_of_a_run()
    assert "the backbone starts from RANDOM weights" in random
    for modality in ("RGB", "NI", "TI"):
        folder = own_root / "RGBNT201" / "test" / modality
        shutil.copy(sorted(folder.iterdir())[0], folder / "000003_cam1_0_77.jpg")
    _, shared, unmatched = warnings_of_a_run()
    assert "1 identities are in training and test, the first 3" in shared
    assert "1 of 33 queries have no match in the gallery" in unmatched
    patterns = load_records(tmp_path / "run")[-1]["patterns"]
    assert all(0 < values["mAP"] <= 1 for values in patterns.values())
