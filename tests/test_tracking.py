"""Weights & Biases (SOLVER.WANDB), with WANDB_MODE=offline: the real library and its files."""
import os
import shutil
import sys
from importlib.util import find_spec

import psutil
import pytest
from commands import CONFIG, ONE_LINE, ROOT, SMALL, records_of
from interrupted import EVERY_STEP, assert_same, at, call, cli_args_for, terminate
from wandb_files import points, records

from demo_sdtps import train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.training.tracking import run_ids, wandb_run
from demo_sdtps.training.trainer import Trainer

ON = ("SOLVER.WANDB", "demo")
ID = "0123456789abcdef"
NEEDS_WANDB = pytest.mark.skipif(not find_spec("wandb"), reason="wandb is not installed (pip install -e '.[wandb]')")


def folder_of_wandb(path, *more):
    """A folder as wandb leaves it after two runs."""
    for name in (f"offline-run-20260102_030405-{ID}", f"run-20260101_030405-{ID[::-1]}", *more):
        (path / "wandb" / name).mkdir(parents=True)
    (path / "wandb" / "latest-run").symlink_to(f"run-20260101_030405-{ID[::-1]}")
    return path / "wandb"


def test_the_identifier_of_the_latest_run_counts(tmp_path):
    assert run_ids(tmp_path) == []
    folder_of_wandb(tmp_path)
    assert run_ids(tmp_path) == [ID[::-1], ID]


def refused(command, output, root):
    """The sentence of a training that ends before it writes anything."""
    code, _, stderr = command(train_net.main, "--config_file", CONFIG, "DATASETS.ROOT_DIR", root, *SMALL, *ON, "OUTPUT_DIR",
                              output)
    assert code == 2 and stderr.startswith(ONE_LINE) and not output.exists()
    return stderr


def test_wandb_that_is_not_installed_is_told_before_anything_is_written(tmp_path, tiny_root, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = refused(command, tmp_path / "run", tiny_root)
    assert "pip install -e '.[wandb]'" in said and not list(tmp_path.iterdir())


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """A home, a folder for temporary files and a current folder of the test's own; wandb without settings of the user."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "XDG_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "TMPDIR"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    return tmp_path


@pytest.mark.slow
@NEEDS_WANDB
def test_a_user_who_is_not_logged_in_is_told_before_anything_is_written(own_home, tiny_root, command):
    said = refused(command, own_home / "run", tiny_root)
    assert "wandb login" in said


@pytest.mark.slow
@NEEDS_WANDB
def test_an_interrupted_run_goes_on_as_the_same_one(own_home, tiny_root, monkeypatch):
    """Its numbers are those of a run without Weights & Biases."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("WANDB_MODE", "offline")
    output, without = own_home / "tracked", own_home / "without"
    with at(Trainer, "_train_step", 8, terminate):
        assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *ON, *EVERY_STEP)) == 0
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *ON, "RESUME", "yes")) == 0
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", without)) == 0
    assert_same(without, output)
    assert {record.run.project for record in records(output / "wandb") if record.HasField("run")} == {"demo"}
    assert len(run_ids(output)) == 2 and len(set(run_ids(output))) == 1
    seen, recorded = list(points(output / "wandb")), records_of(output)
    assert [epoch for epoch, _ in seen] == [record["epoch"] for record in recorded] == [1, 2, 3]
    for (_, values), record in zip(seen, recorded, strict=True):
        assert values["train/loss"] == pytest.approx(record["loss"])
        assert values["pattern_3/mAP"] == pytest.approx(record["patterns"]["3"]["mAP"])


@pytest.mark.slow
@NEEDS_WANDB
def test_a_training_outlives_wandb(own_home, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_MODE", "offline")
    before = set(psutil.Process().children(recursive=True))
    with wandb_run(load_cfg(CONFIG, ON), own_home, is_resumed=False) as write:
        write({"train/loss": 1.0}, 1)
        started = set(psutil.Process().children(recursive=True)) - before
        assert started
        for process in started:
            process.kill()
        psutil.wait_procs(started)
        for epoch in (2, 3):
            write({"train/loss": 1.0}, epoch)
    assert caplog.text.count("receives nothing more of this run") == 1
    shutil.rmtree(own_home / "wandb")
