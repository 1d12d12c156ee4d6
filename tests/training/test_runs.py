"""A run from start to end as a user types it: its files, and what it records."""

import json
import platform
import shlex
import shutil
import subprocess
import sys

import pytest
import timm
import torch
from commands import (
    COLUMNS,
    CONFIG,
    ONE_LINE,
    ROOT,
    call,
    cli_args_for,
    contents,
    load_records,
    near,
    parse_table,
    read_scores,
    table_rows,
)
from numeric import assert_close
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.training.run import command as command_line
from demo_sdtps.training.run import commit

pytestmark = pytest.mark.usefixtures("shallow")


@pytest.fixture(scope="module")
def run_folder(tiny_root, tmp_path_factory):
    """The OUTPUT_DIR of a training."""
    output = tmp_path_factory.mktemp("runs") / "run"
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output)) == 0
    return output


def test_a_run_leaves_its_files_and_configuration(run_folder, tiny_root):
    left = {
        path.name
        for path in run_folder.iterdir()
        if not path.name.startswith("events.out.tfevents.")
    }
    assert left == {"config.yml", "metrics.json", "run.json", "last.pth", "best.pth", "log.txt"}
    assert load_cfg(run_folder / "config.yml") == load_cfg(
        CONFIG, cli_args_for(tiny_root, "OUTPUT_DIR", run_folder)[2:]
    )


def test_metrics_hold_every_evaluation(run_folder):
    records = load_records(run_folder)
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
        assert set(record["losses"]) == {
            f"{kind}/{head}" for kind in ("id", "triplet") for head in ("sdtps", "original")
        }
        # of six batches
        assert_close(sum(record["losses"].values()), record["loss"], len(record["losses"]), 6)
    assert records[0]["patterns"] != records[2]["patterns"]


def test_the_last_and_the_best_checkpoint(run_folder):
    cfg = load_cfg(run_folder / "config.yml")
    scores = {
        record["epoch"]: record["patterns"]["3"]["mAP"] for record in load_records(run_folder)[1:]
    }
    for name in ("last.pth", "best.pth"):
        content = torch.load(run_folder / name, weights_only=True)
        assert (content["num_class"], content["camera_num"], content["dataset"]) == (
            6,
            4,
            "Synthetic",
        )
        assert content["cameras"] == ["1", "2", "3", "4"]
        make_model(cfg, 6, 4).load_state_dict(content["model"])
        assert content["epoch"] == (2 if name == "last.pth" else max(scores, key=scores.get))
        assert content["config"] == (run_folder / "config.yml").read_text()


def test_log_and_tensorboard_tell_what_metrics_tell(run_folder):
    log = (run_folder / "log.txt").read_text()
    assert (
        "48 train" in log
        and "random weights" in log
        and "evaluation after epoch 0" in log
        and "evaluation after epoch 2" in log
    )
    board = EventAccumulator(str(run_folder))
    board.Reload()
    last = load_records(run_folder)[-1]
    for pattern, values in last["patterns"].items():
        for name, value in values.items():
            event = board.Scalars(f"pattern_{pattern}/{name}")[-1]
            assert event.step == 2
            assert_close(event.value, value, 1)
    assert_close(board.Scalars("train/loss")[-1].value, last["loss"], 1)
    for name, value in last["losses"].items():
        assert_close(board.Scalars(f"train/loss/{name}")[-1].value, value, 1)
        assert f"{name} {value:.4g}" in log


def test_the_test_command_gives_the_last_record_however_images_are_loaded(
    run_folder, tmp_path, success
):
    loading = ("DATALOADER.NUM_WORKERS", "2", "DATASETS.CACHE", "no", "TEST.IMS_PER_BATCH", "7")
    words = ("--weight", run_folder / "last.pth", "--json", tmp_path / "x.json", *loading)
    stdout = success(test_net.main, *words)
    actual = read_scores(tmp_path / "x.json")
    assert actual == near(load_records(run_folder)[-1]["patterns"])
    assert parse_table(stdout) == table_rows(actual)
    assert stdout.splitlines()[1].split() == ["return", "pattern", *COLUMNS]


def test_an_earlier_run_is_replaced_where_asked(run_folder, tiny_root, tmp_path):
    output = shutil.copytree(run_folder, tmp_path / "run")
    before = contents(output)
    words = cli_args_for(tiny_root, "OUTPUT_DIR", output, "SOLVER.MAX_EPOCHS", "1")
    assert call([*words, "--overwrite"]) == 0
    assert [record["epoch"] for record in load_records(output)] == [0, 1]
    after = contents(output)
    assert not [name for name, data in after.items() if before.get(name) == data]
    assert sum(name.startswith("events.") for name in after) == 1


# What a run was made with


def test_a_run_records_what_it_was_made_with(run_folder):
    record = json.loads((run_folder / "run.json").read_text())
    assert record["status"] == "finished" and record["seconds"] > 0 and "error" not in record
    assert (record["seed"], record["start"]) == (1111, "") and record["commit"] == commit(ROOT)[
        "commit"
    ]
    versions = record["versions"]
    assert versions["python"] == platform.python_version()
    for package in (torch, timm):
        assert versions[package.__name__].split("+")[0] == package.__version__.split("+")[0]
    threads = torch.get_num_threads()
    assert record["machine"]["device"] == "cpu" and record["machine"]["threads"] == threads


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python3.11 train_net.py 'two words'", "python train_net.py 'two words'"),
        ("/bin/python -m demo_sdtps.commands train", "python -m demo_sdtps.commands train"),
        ("/bin/python /venv/bin/demo-sdtps train a=b", "demo-sdtps train a=b"),
    ],
)
def test_the_command_is_recorded_as_it_was_started(monkeypatch, words, expected):
    monkeypatch.setattr(sys, "orig_argv", shlex.split(words))
    assert command_line() == expected


def test_the_commit_of_a_checkout(tmp_path):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.check_output(["git", "-C", tmp_path, *identity, *words], text=True)

    assert commit(tmp_path) == {"commit": None, "changed": None}
    (tmp_path / "one.py").write_text("width = 1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "A model")
    revision = git("rev-parse", "HEAD").strip()
    assert len(revision) == 40 and commit(tmp_path) == {"commit": revision, "changed": False}
    (tmp_path / "one.py").write_text("width = 2")
    assert commit(tmp_path) == {"commit": revision, "changed": True}
    # of an installed package inside it
    assert commit(tmp_path / "site-packages") == {"commit": None, "changed": None}


def test_a_run_that_fails_says_so(tiny_root, tmp_path, command):
    cli_args = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", "SOLVER.BASE_LR", "1e30")
    code, _, stderr = command(train_net.main, *cli_args)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert code == 2 and stderr.splitlines()[-1] == f"{ONE_LINE}{record['error']}"
    assert record["status"] == "failed" and record["seconds"] > 0
