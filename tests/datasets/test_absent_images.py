"""What own data lack: a modality without any folder, and images that cannot be read."""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tiny import CONFIG

from demo_sdtps.commands import evaluate, search
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import UserError
from demo_sdtps.datasets import SPLITS, completeness, read_splits
from demo_sdtps.evaluation.protocol import evaluate_reid, make_test_data
from demo_sdtps.modeling.demo import make_model
from tests.datasets.test_own_data import (
    PATTERN,
    TINY,
    configuration,
    expected_samples,
    write_incomplete,
)


@pytest.mark.parametrize("name", ["Folder", "CSV"])
def test_a_modality_without_a_folder_or_a_column_is_missing_everywhere(tmp_path, name):
    """Without any modality there is an error."""
    rows = write_incomplete(tmp_path, junk=False)
    table = tmp_path / "persons.csv"
    expected = {
        split: expected_samples([(*row[:4], (row[4][0], None, row[4][2])) for row in rows], split)
        for split in SPLITS
    }
    place = tmp_path if name == "Folder" else table
    for split in SPLITS:
        shutil.rmtree(tmp_path / split / "NI")
    with open(table, "w", newline="") as file:
        lines = [(row[0], *row[2:4], row[4][0], row[4][2]) for row in rows]
        csv.writer(file).writerows([("split", "identity", "camera", "rgb", "ti"), *lines])
    opts = (*PATTERN, "MODEL.MODALITIES", "[RGB, NI, TI]")
    splits = read_splits(configuration(place, name, *opts))
    assert {split: {*samples} for split, samples in splits.items()} == {
        split: {*samples} for split, samples in expected.items()
    }
    cfg = configuration(place, name, *opts, "TEST.MISS", "all", "MODEL.SLIM_BLOCKS", "[]")
    assert all("NI" not in line for line in completeness(cfg, splits))
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    assert {*evaluate_reid(cfg, make_model(cfg, 4, 3).eval(), data)} == {"nothing", "r", "t"}
    with pytest.raises(UserError, match=str(place)):
        read_splits(configuration(place, name, *PATTERN, "MODEL.MODALITIES", "[NI]"))


@pytest.mark.slow
def test_unreadable_images_are_left_out_by_train_test_report_and_calibrate(tmp_path, command):
    """One image of a triplet that has others, and all of a query: at the end they are listed, and in run.json."""
    data, run = tmp_path / "data", tmp_path / "run"
    rows = write_incomplete(data, junk=False)
    lacking = next(row for row in rows if row[0] == "train" and sum(map(bool, row[4])) > 1)
    query = next(row for row in rows if row[0] == "query")
    broken = [next(filter(None, lacking[4])), *filter(None, query[4])]
    for path in broken:
        Path(path).write_bytes(b"no image")
    small = shlex.split("MODEL.SLIM_BLOCKS [] SOLVER.MAX_EPOCHS 1 MODEL.DEVICE cpu")
    opts = ("DATASETS.NAMES", "Folder", "DATASETS.ROOT_DIR", data, *PATTERN, *TINY)
    words = ["--config_file", CONFIG, *opts, *small, "OUTPUT_DIR", run]
    code, _, stderr = command(train_net.main, *words)
    assert code == 2 and "cannot be read" in stderr

    def listed(stdout, paths):
        """Whether these, and no other images, are listed at the end of the output."""
        head, *lines = stdout.splitlines()[-len(paths) - 1 :]
        names = sorted(line.partition(" ")[0] for line in lines)

        return re.match(rf"Left out, {len(paths)} images?:", head) and names == sorted(
            map(str, paths)
        )

    skip, weight = "--skip_unreadable", ("--weight", run / "last.pth")
    code, stdout, stderr = command(train_net.main, *words, "--overwrite", skip)
    assert code == 0 and listed(stdout, broken), stderr
    record = json.loads((run / "run.json").read_text())
    assert {*record["left_out"]} == {*broken} and record["status"] == "finished"
    assert command(test_net.main, *weight, "DATASETS.SKIP_UNREADABLE", "False")[0] == 2
    page = ("--run", run, "--html", tmp_path / "x.html")
    for main, more in ((test_net.main, weight), (evaluate.report, page)):
        code, stdout, stderr = command(main, *more, skip)
        assert code == 0 and listed(stdout, broken[1:]) and "11 queries" in stdout, stderr
    shutil.copytree(data, tmp_path / "other")
    other = ("--split", "query", "DATASETS.ROOT_DIR", tmp_path / "other")
    message = command(search.calibrate, *weight, *other, "DATASETS.SKIP_UNREADABLE", "False")[2]
    assert "cannot be read" in message
    assert "too few pairs" in command(search.calibrate, *weight, *other, skip)[2]
