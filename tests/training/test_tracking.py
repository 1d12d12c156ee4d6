"""Weights & Biases (SOLVER.WANDB), with WANDB_MODE=offline: the real library and its files."""

import json
import os
import sys
from importlib.util import find_spec

import pytest
from commands import ROOT
from interrupted import EVERY_STEP, assert_same, at, call, cli_args_for, terminate

from demo_sdtps.commands import train as train_net
from demo_sdtps.training.monitor import Meter

ON = ("SOLVER.WANDB", "demo")
NEEDS_WANDB = pytest.mark.skipif(
    not find_spec("wandb"), reason="wandb is not installed (pip install -e '.[wandb]')"
)


def test_wandb_that_is_not_installed_is_told_before_anything_is_written(
    tmp_path, tiny_root, command, monkeypatch
):
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
    with at(Meter, "update", 8, terminate):
        assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *ON, *EVERY_STEP)) == 0
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *ON, "RESUME", "yes")) == 0
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", without)) == 0
    assert_same(without, output)
    ids = [path.name.rpartition("-")[2] for path in (output / "wandb").glob("offline-run-*")]
    assert len(ids) == 2 and set(ids) == {json.loads((output / "run.json").read_text())["id"]}
    for path in (output / "wandb").glob("offline-run-*/run-*.wandb"):
        assert all(name in path.read_bytes() for name in (b"demo", b"train/loss", b"pattern_3/mAP"))
