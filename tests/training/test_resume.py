"""A run that is interrupted resumes as if nothing had happened (training/run.py), and says why where it cannot."""

import json
import random
import re
import shutil
import time
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import ONE_LINE, ROOT, contents, load_records
from interrupted import EVERY_STEP, assert_same, at, call, cli_args_for, kill, terminate
from seps_tiny import cli_args_for as seps_cli_args_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from demo_sdtps.commands import train as train_net
from demo_sdtps.training import reid
from demo_sdtps.training.monitor import Meter
from demo_sdtps.training.output import Resumed, with_resumption
from demo_sdtps.training.resume import DIGEST, random_states, set_random_states
from demo_sdtps.training.run import Run
from seps import commands as seps

pytestmark = pytest.mark.usefixtures("shallow")

AUTO = ("RESUME", "auto")
NO_MINUTES = ("SOLVER.CHECKPOINT_MINUTES", "0")
LOADING = (*EVERY_STEP, "DATALOADER.NUM_WORKERS", "2")


@pytest.fixture(scope="module", autouse=True)
def in_the_root():
    """Every run of this module finds its configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def reference(tiny_root, tmp_path_factory):
    """An uninterrupted run that saves at its end alone → its folder."""
    output = tmp_path_factory.mktemp("reference") / "run"
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *NO_MINUTES)) == 0
    return output


@pytest.fixture(scope="module")
def sigterm_run(tiny_root, tmp_path_factory):
    """A run that SIGTERM ended in its second epoch → its folder, for tests to copy."""
    output = tmp_path_factory.mktemp("stopped") / "run"
    with at(Meter, "update", 8, terminate):
        assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *EVERY_STEP)) == 0
    return output


@pytest.fixture
def run_copy(sigterm_run, tmp_path):
    return shutil.copytree(sigterm_run, tmp_path / "run")


@pytest.fixture
def fails(command):
    """Call train_net.py, which must end with one sentence: → that sentence."""

    def actual(words):
        code, _, stderr = command(train_net.main, *words)
        message = stderr.strip().splitlines()[-1]
        assert code == 2 and message.startswith(ONE_LINE) and message.endswith(".")
        assert "Traceback" not in stderr
        return message

    return actual


PLACES = {
    "in a step": (Meter, "update", 9, kill, EVERY_STEP),
    "SIGTERM in an evaluation": (reid, "evaluate_reid", 2, terminate, ()),
    "in a step, with two loading processes": (Meter, "update", 9, kill, LOADING),
    "between evaluation and saving": (Run, "save", 2, kill, ("SOLVER.CHECKPOINT_PERIOD", "1")),
    "before anything was saved": (Meter, "update", 9, kill, NO_MINUTES),
}
QUICKEST = ("in a step", "SIGTERM in an evaluation")


@pytest.mark.parametrize(
    "place",
    [
        *QUICKEST,
        *(pytest.param(place, marks=pytest.mark.slow) for place in PLACES if place not in QUICKEST),
    ],
)
def test_a_resumed_run_ends_like_an_uninterrupted_one(reference, tiny_root, tmp_path, place):
    owner, name, number, act, more = PLACES[place]
    words = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", *AUTO, *more)
    with at(owner, name, number, act):
        assert call(words) == (130 if act is kill else 0)
    if act is terminate:  # which ends at once: its epoch is not recorded
        assert [record["epoch"] for record in load_records(tmp_path / "run")] == [1]
    assert call(words) == 0
    assert_same(reference, tmp_path / "run")
    assert not (tmp_path / "run" / "last.previous.pth").exists()


def test_every_random_generator_goes_on():
    def draws():
        return random.random(), random.gauss(0, 1), np.random.randn(), torch.rand(1)

    draws()  # Python and NumPy keep the second of a pair of normal numbers
    states = random_states()
    expected = draws()
    draws()
    set_random_states(states)
    assert draws() == expected


def test_the_time_left_counts_the_steps_done_since(tiny_root, run_copy, monkeypatch):
    """Where every step takes 100 seconds, an epoch of which this process has done a part counts as that part."""
    steps, update = [], Meter.update

    def counted_update(*arguments, **sums):
        steps.append(1)
        update(*arguments, **sums)

    monkeypatch.setattr(Meter, "update", counted_update)
    clock = SimpleNamespace(monotonic=lambda: 100.0 * len(steps))
    monkeypatch.setattr("demo_sdtps.training.run.time", clock)
    step = torch.load(run_copy / "last.pth", weights_only=True)["step"]
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", run_copy, *AUTO, *NO_MINUTES)) == 0
    epoch_steps = (step + len(steps)) // 2  # of two epochs, the first of which had done `step`
    assert 0 < step < epoch_steps
    expected = f"2 of 3 epochs, about {timedelta(seconds=100 * epoch_steps)} left"
    assert expected in (run_copy / "log.txt").read_text()


def test_a_checkpoint_is_saved_every_so_many_minutes(tiny_root, tmp_path, monkeypatch):
    """Of 15 steps of 25 seconds each after every third, which is later than one minute after the last, and at the end."""
    steps, saves, update, save = [], [], Meter.update, Run.save
    monkeypatch.setattr(Meter, "update", lambda *at, **sums: (steps.append(1), update(*at, **sums)))
    monkeypatch.setattr(Run, "save", lambda run: (saves.append(len(steps)), save(run)))
    clock = SimpleNamespace(monotonic=lambda: 25.0 * len(steps))
    monkeypatch.setattr("demo_sdtps.training.run.time", clock)
    words = ("OUTPUT_DIR", tmp_path / "run", "SOLVER.CHECKPOINT_MINUTES", "1")
    assert call(cli_args_for(tiny_root, *words)) == 0
    assert saves == sorted({*range(3, len(steps), 3), len(steps)}) and len(steps) > 9


@pytest.mark.slow
def test_seps_goes_on_likewise(shapes_root, tmp_path):
    words = seps_cli_args_for(
        shapes_root, "MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.DROP_PATH", "0.2", *AUTO, *EVERY_STEP
    )
    assert call([*words, "OUTPUT_DIR", tmp_path / "reference"], seps.train) == 0
    with at(Meter, "update", 5, kill):
        assert call([*words, "OUTPUT_DIR", tmp_path / "run"], seps.train) == 130
    assert call([*words, "OUTPUT_DIR", tmp_path / "run"], seps.train) == 0
    assert_same(tmp_path / "reference", tmp_path / "run")


def test_sigterm_finishes_the_step_and_saves(sigterm_run):
    last = torch.load(sigterm_run / "last.pth", weights_only=True)
    assert last["epoch"] == 1 and last["meter"]["seen"] == 8 * last["step"] > 0  # batches of 8
    assert json.loads((sigterm_run / "run.json").read_text())["status"] == "stopped"
    assert "stopped by SIGTERM" in (sigterm_run / "log.txt").read_text()
    assert (sigterm_run / "last.previous.pth").exists()


def test_what_is_written_goes_on_too(run_copy, reference, tiny_root):
    """log.txt, run.json and TensorBoard, where the killed run was ahead of its checkpoint."""
    with SummaryWriter(run_copy) as board:  # a point of an epoch that the checkpoint does not have
        board.add_scalar("train/loss", 99.0, 2)
    # TensorBoard reads files in the order of their names, which begin with the second
    time.sleep(1.1)
    before = (run_copy / "log.txt").read_text()
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", run_copy, "RESUME", "True")) == 0
    assert_same(reference, run_copy)
    log = (run_copy / "log.txt").read_text()
    assert log.startswith(before) and "may differ" not in log
    assert "continuing after epoch 1 and " in log[len(before) :]
    run = json.loads((run_copy / "run.json").read_text())
    assert run["status"] == "finished" and "error" not in run and EVERY_STEP[0] in run["command"]
    resumed = Resumed({"epoch": 1, "step": 2}, run_copy / "last.pth")
    again = with_resumption(run, run | {"error": "a full disk"}, resumed)
    assert again["status"] == "running" and not {"error", "seconds"} & again.keys()
    assert [one["commit"] for one in again["resumptions"]] == [run["commit"]] * 2
    (entry,) = run["resumptions"]
    assert (entry["epoch"], entry["checkpoint"]) == (1, "last.pth") and entry["step"] > 0
    assert "RESUME" in entry["command"]
    board = EventAccumulator(str(run_copy))
    board.Reload()
    points = [(event.step, event.value) for event in board.Scalars("train/loss")]
    assert points == [
        (record["epoch"], pytest.approx(record["loss"], rel=1e-5))
        for record in load_records(run_copy)
    ]


def test_nothing_is_left_to_do(reference, tiny_root, command):
    before = contents(reference)
    words = cli_args_for(tiny_root, "OUTPUT_DIR", reference, *AUTO)
    code, stdout, _ = command(train_net.main, *words)
    assert code == 0 and "is finished (epoch 3); nothing is left to do." in stdout
    assert contents(reference) == before


def test_another_machine_is_a_warning(run_copy, tiny_root):
    record = json.loads((run_copy / "run.json").read_text())
    record["machine"] |= {"cpu": "ABACUS", "threads": 64}
    record["versions"]["torch"] = "0.4"
    (run_copy / "run.json").write_text(json.dumps(record))
    with at(Meter, "update", 1, kill):
        assert call(cli_args_for(tiny_root, "OUTPUT_DIR", run_copy, *AUTO)) == 130
    (warning,) = (
        line
        for line in (run_copy / "log.txt").read_text().splitlines()
        if "WARNING the run started with" in line
    )
    assert all(
        phrase in warning for phrase in ("torch 0.4 (now", "cpu ABACUS (now", "threads 64 (now")
    )


def test_a_finished_run_can_be_made_longer(reference, tiny_root, tmp_path):
    output = shutil.copytree(reference, tmp_path / "run")
    assert call(cli_args_for(tiny_root, "OUTPUT_DIR", output, *AUTO, "SOLVER.MAX_EPOCHS", "4")) == 0
    records = load_records(output)
    assert records[:3] == load_records(reference)
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    told = re.search(
        r"is 4 and was 3: .* from (\S+) to (\S+) in epoch 4,", (output / "log.txt").read_text()
    )
    assert told and [*told.groups()] == [f"{record['lr']:.2g}" for record in records[2:]]


REFUSED = {
    "another configuration": (
        [*AUTO, "SOLVER.BASE_LR", "0.5", "SOLVER.SEED", "7"],
        "SOLVER.BASE_LR is 0.5",
    ),
    "a run to replace and to continue": ([*AUTO, "--overwrite"], "leave one of them out"),
    "nothing to continue": (["RESUME", "yes", "OUTPUT_DIR", "none"], "holds no run to continue"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_continued(fails, run_copy, tiny_root, name):
    words, reason = REFUSED[name]
    before = contents(run_copy)
    assert reason in fails(cli_args_for(tiny_root, "OUTPUT_DIR", run_copy, *words))
    assert contents(run_copy) == before


@pytest.mark.parametrize("resume", ["auto", "yes", "no"])
@pytest.mark.parametrize(
    ("status", "more"),
    [("finished", ()), ("failed", ("SOLVER.SEED", "7"))],
    ids=["a finished run", "another run after a full disk"],
)
def test_a_run_without_its_checkpoint(fails, reference, tiny_root, tmp_path, resume, status, more):
    """The sentence leads on: to another folder, or to --overwrite, and not from one value of RESUME to another."""
    output = shutil.copytree(reference, tmp_path / "run")
    (output / "last.pth").unlink()
    record = json.loads((output / "run.json").read_text()) | {"status": status}
    (output / "run.json").write_text(json.dumps(record))
    before, words = contents(output), cli_args_for(tiny_root, "OUTPUT_DIR", output, *NO_MINUTES)
    sentence = fails([*words, "RESUME", resume, *more])
    assert "without last.pth it cannot be continued" in sentence and "--overwrite" in sentence
    assert "RESUME auto" not in sentence and "RESUME yes" not in sentence
    assert contents(output) == before


def test_auto_does_not_replace_what_it_cannot_continue(fails, tiny_root, tmp_path):
    (tmp_path / "best.pth").write_text("of somebody else")
    assert "already holds a run (best.pth)" in fails(
        cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path, *AUTO)
    )
    assert contents(tmp_path) == {"best.pth": b"of somebody else"}


def test_other_data_are_refused(fails, run_copy, own_root, tmp_path, reference):
    moved = tmp_path / "moved"
    own_root.rename(moved)
    twin = shutil.copytree(run_copy, tmp_path / "twin")
    # the same data in another place
    assert call(cli_args_for(moved, "OUTPUT_DIR", twin, *AUTO)) == 0
    assert_same(reference, twin)
    first = sorted((moved / "RGBNT201" / "test" / "NI").iterdir())[0]
    first.write_bytes(first.read_bytes() + b"0")
    message = fails(cli_args_for(moved, "OUTPUT_DIR", run_copy, *AUTO))
    assert "the run in" in message and "'query NI'" in message
    content = torch.load(run_copy / "last.pth", weights_only=True)
    del content[DIGEST]
    torch.save(content, run_copy / "last.pth")
    message = fails(cli_args_for(moved, "OUTPUT_DIR", run_copy, *AUTO))
    assert "is of version 0.1.0" in message


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip_a_bit(path):
    """In the middle of the weights, where torch would not notice."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "cut short": cut_short,
    "a flipped bit": flip_a_bit,
    "weights alone": lambda path: torch.save({"model": {}}, path),
}


@pytest.mark.parametrize(
    "kind", ["a flipped bit", "weights alone", pytest.param("cut short", marks=pytest.mark.slow)]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    run_copy, reference, fails, tiny_root, caplog, kind
):
    damaged = shutil.copytree(run_copy, run_copy.with_name("damaged"))
    for name in ("last.pth", "last.previous.pth"):
        DAMAGES[kind](damaged / name)
    words = cli_args_for(tiny_root, *AUTO)
    message = fails([*words, "OUTPUT_DIR", damaged])
    assert "last.pth" in message and "last.previous.pth" in message and "--overwrite" in message

    DAMAGES[kind](run_copy / "last.pth")
    assert call([*words, "OUTPUT_DIR", run_copy]) == 0
    assert f"{run_copy / 'last.pth'} " in caplog.text
    assert f"from {run_copy / 'last.previous.pth'}" in (run_copy / "log.txt").read_text()
    assert_same(reference, run_copy)


def test_a_key_that_is_newer_than_the_run_counts_as_its_default(fails, run_copy, tiny_root):
    content = torch.load(run_copy / "last.pth", weights_only=True)
    earlier, count = re.subn(r"^  SDTPS_GUIDE_MISSING: .*\n", "", content["config"], flags=re.M)
    assert count == 1
    torch.save(content | {"config": earlier}, run_copy / "last.pth")
    words = cli_args_for(tiny_root, "OUTPUT_DIR", run_copy, *AUTO)
    key = "MODEL.SDTPS_GUIDE_MISSING"
    assert f"{key} is False" in fails([*words, key, "False"])
    with at(Meter, "update", 1, kill):
        assert call(words) == 130  # it goes on
