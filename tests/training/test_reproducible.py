"""One seed gives one run, to the last bit; and a run says what it was made with (training/record.py)."""

import json
import platform
import shlex
import subprocess
import sys

import numpy
import pytest
import timm
import torch
import torchvision
from commands import ONE_LINE, ROOT, cli_args_for
from interrupted import call

from demo_sdtps.commands import train as train_net
from demo_sdtps.training.record import command, commit

pytestmark = pytest.mark.usefixtures("shallow")

GUMBEL = ("MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.SDTPS_GUMBEL_SELECT", "True")
"""Everything random that the model has."""
RUNS = {"one": (), "loaded otherwise": ("DATALOADER.NUM_WORKERS", "2", "DATASETS.CACHE", "no")}


@pytest.fixture(scope="module")
def runs(tiny_root, tmp_path_factory):
    """Trainings: → their folders by name."""
    folder = tmp_path_factory.mktemp("reproducible")
    words = cli_args_for(tiny_root, *GUMBEL, "SOLVER.SEED", "2")
    for name, more in RUNS.items():
        torch.manual_seed(len(name))
        assert call([*words, *more, "OUTPUT_DIR", folder / name]) == 0
    return {name: folder / name for name in RUNS}


def test_the_same_seed_gives_the_same_run_to_the_last_bit(runs):
    """Whether one process loads and keeps the images, or two load them and keep none."""
    first, second = runs["one"], runs["loaded otherwise"]
    assert (first / "metrics.json").read_bytes() == (second / "metrics.json").read_bytes()
    weights, others = (
        torch.load(folder / "last.pth", weights_only=True)["model"] for folder in (first, second)
    )
    assert weights.keys() == others.keys()
    assert all(torch.equal(value, others[key]) for key, value in weights.items())


def test_a_run_records_what_it_was_made_with(runs):
    record = json.loads((runs["one"] / "run.json").read_text())
    assert record["status"] == "finished" and record["seconds"] > 0 and "error" not in record
    assert record["seed"] == 2 and record["commit"] == commit(ROOT)["commit"]
    actual = record["versions"]
    assert actual["python"] == platform.python_version()
    for package in (torch, torchvision, timm, numpy):
        assert actual[package.__name__].split("+")[0] == package.__version__.split("+")[0]
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
    assert command() == expected


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit_all(folder):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "A model")


def test_the_commit_of_a_checkout(tmp_path):
    assert commit(tmp_path) == {"commit": None, "changed": None}
    (tmp_path / "one.py").write_text("width = 1")
    commit_all(tmp_path)
    revision = git(tmp_path, "rev-parse", "HEAD")
    assert len(revision) == 40 and commit(tmp_path) == {"commit": revision, "changed": False}
    (tmp_path / "one.py").write_text("width = 2")
    assert commit(tmp_path) == {"commit": revision, "changed": True}


def test_a_run_that_fails_says_so(tiny_root, tmp_path, command):
    cli_args = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", "SOLVER.BASE_LR", "1e30")
    code, _, stderr = command(train_net.main, *cli_args)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert code == 2 and stderr.splitlines()[-1] == f"{ONE_LINE}{record['error']}"
    assert record["status"] == "failed" and record["seconds"] > 0
