"""One seed gives one run, to the last bit; and a run says what it was made with (training/output.py)."""

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
from commands import CONFIG, ONE_LINE, ROOT, cli_args_for
from interrupted import call

from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.training.loop import fit
from demo_sdtps.training.output import command, commit
from demo_sdtps.training.reid import make_task

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


@pytest.mark.parametrize(("asked", "inside"), [("default", 0), ("warn", 2)])
# of operations that are not deterministic, which the mode "warn" tells
@pytest.mark.filterwarnings("ignore")
def test_the_backward_pass_is_deterministic_where_that_is_asked_for(
    tiny_root, tmp_path, asked, inside
):
    """As on a GPU, where a warning would leave the fused attention as it is; the rest of the step is as before."""
    words = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path, "SOLVER.MAX_EPOCHS", 1)
    cfg = load_cfg(CONFIG, words[2:])
    modes = {"forward": [], "backward": []}

    def make(*arguments):
        task = make_task(*arguments)
        task.model.register_forward_hook(
            lambda *_: modes["forward"].append(torch.get_deterministic_debug_mode())
        )
        next(task.model.parameters()).register_hook(
            lambda _: modes["backward"].append(torch.get_deterministic_debug_mode())
        )
        return task

    torch.set_deterministic_debug_mode(asked)
    try:
        before = torch.get_deterministic_debug_mode()
        fit(cfg, False, make)
        assert torch.get_deterministic_debug_mode() == before
    finally:
        torch.set_deterministic_debug_mode("default")
    assert set(modes["forward"]) == {before} and set(modes["backward"]) == {inside}


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

    interpreter, script, *words = shlex.split(record["command"])
    assert interpreter == "python" and script == "command"
    config_file, *opts = words[words.index("--config_file") + 1 :]
    assert load_cfg(config_file, opts) == load_cfg(runs["one"] / "config.yml")


@pytest.mark.slow
@pytest.mark.soak
def test_the_command_of_a_module_has_no_path(tmp_path):
    source = "from demo_sdtps.training.output import command\nprint(command())"
    (tmp_path / "shown.py").write_text(source)
    words = [sys.executable, "-m", "shown", "two words"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "python -m shown 'two words'"


@pytest.mark.parametrize("module", ["demo_sdtps.commands", None])
def test_the_command_is_recorded_as_it_was_started(monkeypatch, module):
    """Where the script demo-sdtps is not on the path, it could not be repeated by it."""
    start = ["-m", module] if module else ["/bin/demo-sdtps"]
    monkeypatch.setattr(sys, "orig_argv", ["python3", *start, "train", "RESUME", "yes"])
    monkeypatch.setattr(sys, "argv", ["demo-sdtps train", "RESUME", "yes"])
    name = "python -m demo_sdtps.commands" if module else "demo-sdtps"
    assert command() == f"{name} train RESUME yes"


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
