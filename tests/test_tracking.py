"""Weights & Biases (SOLVER.WANDB), with WANDB_MODE=offline: the real library and its files."""
import os
import shutil
import sys
from importlib.util import find_spec

import psutil
import pytest
from commands import CONFIG, ROOT, records_of
from interrupted import EVERY_STEP, assert_same, at, call, cli_args_for, terminate
from wandb_files import points, records

from demo_sdtps import train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.training.tracking import run_ids, wandb_run
from demo_sdtps.training.trainer import Trainer

ON = ("SOLVER.WANDB", "demo")
ID = "0123456789abcdef"
NEEDS_WANDB = pytest.mark.skipif(not find_spec("wandb"), reason="wandb is not installed (pip install -e '.[wandb]')")


def test_the_identifier_of_the_latest_run_counts(tmp_path):
    """In a folder as wandb leaves it after two runs."""
    assert run_ids(tmp_path) == []
    for name in (f"offline-run-20260102_030405-{ID}", f"run-20260101_030405-{ID[::-1]}"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
    (tmp_path / "wandb" / "latest-run").symlink_to(f"run-20260101_030405-{ID[::-1]}")
    assert run_ids(tmp_path) == [ID[::-1], ID]


def test_wandb_that_is_not_installed_is_told_before_anything_is_written(tmp_path, tiny_root, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    words = cli_args_for(tiny_root, *ON, "OUTPUT_DIR", tmp_path / "run")
    monkeypatch.chdir(ROOT)
    code, _, stderr = command(train_net.main, *words)
    assert code == 2 and "pip install -e '.[wandb]'" in stderr and not list(tmp_path.iterdir())


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
