"""A run from start to end as a user types it, in processes of its own."""
import hashlib
import json
import os
import shutil
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
import torch
from commands import (
    BACKBONE_WIDTH,
    COLUMNS,
    CONFIG,
    ONE_LINE,
    cli_args_for,
    contents,
    near,
    printed,
    processes,
    records_of,
    scores_of,
    table_of,
)
from interrupted import call
from numeric import assert_close
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from demo_sdtps import test_net, train_net
from demo_sdtps.config import RETURN_PATTERNS, load_cfg
from demo_sdtps.datasets import SPLITS, read_splits
from demo_sdtps.modeling import make_model
from demo_sdtps.tools import draw_curves, draw_ranks, draw_tokens, export_features


@pytest.fixture(scope="module")
def trained(tiny_root, tmp_path_factory):
    """The OUTPUT_DIR of a training in a process of its own."""
    folder = tmp_path_factory.mktemp("runs")
    processes(folder, ["train_net.py", *cli_args_for(tiny_root, "OUTPUT_DIR", folder / "run")])
    return folder / "run"


def test_a_run_leaves_its_files(trained):
    for name in ("config.yml", "metrics.json", "run.json", "last.pth", "best.pth", "log.txt"):
        assert (trained / name).stat().st_size > 0
    left = {path.name for path in trained.iterdir() if not path.name.startswith("events.out.tfevents.")}
    assert left == {"config.yml", "metrics.json", "run.json", "last.pth", "best.pth", "log.txt"}


def test_metrics_hold_every_evaluation(trained):
    records = records_of(trained)
    assert [record["epoch"] for record in records] == [0, 1, 2]
    for record in records:
        assert list(record["patterns"]) == ["1", "2", "3"]
        for values in record["patterns"].values():
            assert list(values) == COLUMNS
            assert all(0 <= value <= 1 for value in values.values())
            assert values["mAP"] > 0 and values["Rank-1"] <= values["Rank-5"] <= values["Rank-10"]
    assert set(records[0]) == {"epoch", "patterns"}
    for record in records[1:]:
        assert record["loss"] > 0 and record["lr"] > 0 and 0 <= record["accuracy"] <= 1
        assert set(record["losses"]) == {f"{kind}/{head}" for kind in ("id", "triplet") for head in ("sdtps", "original")}
        assert_close(sum(record["losses"].values()), record["loss"], len(record["losses"]), 6)  # of six batches
    assert records[0]["patterns"] != records[2]["patterns"]


def test_checkpoints_load_without_running_code(trained, tiny_root):
    cfg = load_cfg(trained / "config.yml")
    scores = {record["epoch"]: record["patterns"]["3"]["mAP"] for record in records_of(trained)[1:]}
    for name in ("last.pth", "best.pth"):
        content = torch.load(trained / name, weights_only=True)
        assert (content["num_class"], content["camera_num"], content["dataset"]) == (6, 4, "RGBNT201")
        model = make_model(cfg, 6, 4)
        model.load_state_dict(content["model"])
        assert content["epoch"] == (2 if name == "last.pth" else max(scores, key=scores.get))
        assert content["config"] == (trained / "config.yml").read_text()


def test_the_configuration_of_a_run_loads_back(trained, tiny_root):
    cfg = load_cfg(trained / "config.yml")
    assert cfg == load_cfg(CONFIG, cli_args_for(tiny_root, "OUTPUT_DIR", trained)[2:])
    assert str(tiny_root) == cfg.DATASETS.ROOT_DIR


def test_log_and_tensorboard_tell_what_metrics_tell(trained):
    log = (trained / "log.txt").read_text()
    assert "48 train" in log and "random weights" in log and "epoch 0 (untrained)" in log and "epoch 2" in log
    board = EventAccumulator(str(trained))
    board.Reload()
    last = records_of(trained)[-1]
    for pattern, values in last["patterns"].items():
        for name, value in values.items():
            event = board.Scalars(f"pattern_{pattern}/{name}")[-1]
            assert event.step == 2
            assert_close(event.value, value, 1)
    assert_close(board.Scalars("train/loss")[-1].value, last["loss"], 1)
    for name, value in last["losses"].items():
        assert_close(board.Scalars(f"train/loss/{name}")[-1].value, value, 1)
        assert f"{name} {value:.3f}" in log


@pytest.fixture(scope="module")
def drawn(trained, tiny_root, tmp_path_factory):
    """Everything one does with a finished run: → the folder of what it wrote, and what each command printed.

    Table, features and report by processes of their own; the report has the scripts of the images in it, which are called
    in this process.
    """
    folder = tmp_path_factory.mktemp("drawn")
    weight = trained / "last.pth"
    shutil.copytree(trained, folder / "report")
    own = ["--weight", weight]
    commands = {
        "table": ["test_net.py", *cli_args_for(tiny_root, "--json", "table.json", "TEST.WEIGHT", weight)],
        "export": ["tools/export_features.py", *own, "--return_pattern", "3", "--split", "gallery", "--output", "x.npz",
                   "DATALOADER.NUM_WORKERS", "2"],
        "report": ["tools/report.py", "--run", folder / "report"],
    }
    done = processes(folder, *commands.values())
    said = {name: process.stdout for name, process in zip(commands, done, strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, tool, words in (("curves", draw_curves, ["--run", trained, "--output", folder / "curves.png"]),
                                  ("ranks", draw_ranks, [*own, "--output", "new/ranks.png", "--queries", "2"]),
                                  ("tokens", draw_tokens, [*own, "--output", folder / "tokens.png", "--samples", "2"])):
            with redirect_stdout(StringIO()) as stdout:
                assert call(words, tool.main) == 0, name
            said[name] = stdout.getvalue()
    return folder, said


def test_the_test_command_gives_the_last_record(trained, drawn):
    found = scores_of(drawn[0] / "table.json")
    assert found == near(records_of(trained)[-1]["patterns"])
    assert table_of(drawn[1]["table"]) == printed(found)
    assert drawn[1]["table"].splitlines()[1].split() == ["return", "pattern", *COLUMNS]


@pytest.mark.parametrize("opts", [(), ("DATALOADER.NUM_WORKERS", "2", "DATASETS.CACHE", "no", "TEST.IMS_PER_BATCH", "7")],
                         ids=["as in training", "otherwise"])
def test_the_runs_own_configuration_tests_the_same_however_images_are_loaded(trained, drawn, tmp_path, command, opts):
    code, stdout, _ = command(test_net.main, "--config_file", trained / "config.yml", "--weight", trained / "last.pth",
                              "--json", tmp_path / "x.json", *opts)
    assert code == 0 and stdout.splitlines()[:2] == drawn[1]["table"].splitlines()[:2]
    assert scores_of(tmp_path / "x.json") == near(scores_of(drawn[0] / "table.json"))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("pattern", RETURN_PATTERNS)
def test_exported_features(trained, tiny_root, tmp_path, command, pattern, split):
    output = tmp_path / "features.npz"
    code, stdout, stderr = command(
        export_features.main, "--config_file", trained / "config.yml", "--weight", trained / "last.pth",
        "--return_pattern", pattern, "--split", split, "--output", output)
    assert code == 0, stderr
    samples = read_splits(load_cfg(trained / "config.yml"), (split,))[split]
    width = {1: 3, 2: 3, 3: 6}[pattern] * BACKBONE_WIDTH
    assert str(len(samples)) in stdout and str(width) in stdout and str(output) in stdout
    with np.load(output) as found:
        assert set(found.files) == {"features", "ids", "cams", "scenes", "paths", "return_pattern", "split", "checkpoint",
                                    "checkpoint_sha256", "normalised", "data_set", "configuration"}
        assert (found["return_pattern"].item(), found["split"].item()) == (pattern, split)
        assert found["checkpoint"].item() == str(trained / "last.pth") and not found["normalised"].item()
        assert found["checkpoint_sha256"].item() == hashlib.sha256((trained / "last.pth").read_bytes()).hexdigest()
        cfg = load_cfg(trained / "config.yml")
        assert found["data_set"].item() == cfg.DATASETS.NAMES
        assert json.loads(found["configuration"].item())["INPUT.SIZE_TEST"] == cfg.INPUT.SIZE_TEST
        assert found["features"].dtype == np.float32 and found["features"].shape == (len(samples), width)
        assert np.isfinite(found["features"]).all() and found["features"].std(axis=0).min() > 0
        assert found["ids"].tolist() == [sample.identity for sample in samples]
        assert found["cams"].tolist() == [sample.camera for sample in samples]
        assert found["paths"].tolist() == [list(sample.paths) for sample in samples]
    assert os.listdir(tmp_path) == ["features.npz"]


def test_exports_agree_with_each_other(trained, drawn, tmp_path, command):
    """Pattern 3 is 1 beside 2; loading in two processes and another process change nothing."""
    features = []
    for pattern in RETURN_PATTERNS:
        words = ["--config_file", trained / "config.yml", "--weight", trained / "last.pth", "--overwrite"]
        assert command(export_features.main, *words, "--return_pattern", pattern, "--output", tmp_path / "x.npz")[0] == 0
        with np.load(tmp_path / "x.npz") as found:
            features.append(found["features"])
    assert np.array_equal(np.concatenate(features[:2], axis=1), features[2])
    with np.load(drawn[0] / "x.npz") as found:
        assert np.array_equal(found["features"], features[2])
    assert command(export_features.main, *words, "--normalise", "--output", tmp_path / "x.npz")[0] == 0
    with np.load(tmp_path / "x.npz") as found:
        lengths = np.linalg.norm(features[2].astype(np.float64), axis=1, keepdims=True)
        assert_close(found["features"], features[2] / lengths, features[2].shape[1])
        assert np.ptp(lengths) > 0
        assert found["normalised"].item()
    # Evaluation does not normalise either then.
    assert command(export_features.main, *words, "--normalise", "TEST.FEAT_NORM=no", "--output", tmp_path / "x.npz")[0] == 0
    with np.load(tmp_path / "x.npz") as found:
        assert np.array_equal(found["features"], features[2]) and not found["normalised"].item()


@pytest.mark.parametrize(("name", "rows"), [("curves.png", 0), ("new/ranks.png", 2), ("tokens.png", 2),
                                            ("report/curves.png", 0), ("report/ranks.png", 4), ("report/tokens.png", 8)])
def test_images_are_drawn(drawn, name, rows):
    with Image.open(drawn[0] / name) as image:
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("L"), dtype=np.float32)
        assert image.convert("RGB").getcolors(100) is None  # more than a hundred colours
    assert min(pixels.shape) > 100
    assert pixels.std() > 10
    if rows:  # something is to be seen in every row
        parts = np.array_split(pixels, rows)
        assert min(part.std() for part in parts) > 10
    assert not list(drawn[0].rglob("*.part"))


def test_commands_print_where_they_wrote(drawn):
    folder, said = drawn
    assert said["curves"].strip() == str(folder / "curves.png") and said["ranks"].strip() == "new/ranks.png"
    assert said["tokens"].strip() == str(folder / "tokens.png")
    for name in ("curves.png", "ranks.png", "tokens.png"):
        assert str(folder / "report" / name) in said["report"]


def test_the_report_sets_the_run_beside_the_untrained_model(trained, drawn):
    records = records_of(trained)
    table = table_of(drawn[1]["report"])
    for pattern, expected in near(records[-1]["patterns"], printed=0.000501).items():
        *found, untrained = table[pattern]
        assert dict(zip(COLUMNS, (float(number) / 100 for number in found), strict=True)) == expected
        assert untrained == f"{100 * records[0]['patterns'][pattern]['mAP']:.1f}"
    assert "32 queries" in drawn[1]["report"]


def test_an_earlier_run_is_not_replaced_unless_asked(trained, tiny_root, tmp_path, command):
    output = tmp_path / "run"
    shutil.copytree(trained, output)
    before = contents(output)
    words = cli_args_for(tiny_root, "OUTPUT_DIR", output, "SOLVER.MAX_EPOCHS", "1")
    code, _, stderr = command(train_net.main, *words)
    assert code == 2 and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1
    assert str(output) in stderr and "--overwrite" in stderr
    assert contents(output) == before

    code, _, stderr = command(train_net.main, "--overwrite", *words)
    assert code == 0, stderr
    assert [record["epoch"] for record in records_of(output)] == [0, 1]
    after = contents(output)
    assert not [name for name, data in after.items() if before.get(name) == data]
    assert sum(name.startswith("events.") for name in after) == 1
