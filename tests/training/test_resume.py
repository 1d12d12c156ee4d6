"""A run that is interrupted continues after its last epoch as if nothing had happened, or says why it cannot."""

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import assert_same, at, call, contents, kill, load_records, three_epochs
from processes import started
from seps_tiny import cli_args_for as seps_cli_args_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from demo_sdtps.commands import train as train_net
from demo_sdtps.training import reid
from demo_sdtps.training.loop import Meter
from demo_sdtps.training.run import Run, digest_lines, file_lines, random_states, set_random_states
from seps import __main__ as seps

pytestmark = pytest.mark.usefixtures("shallow")

AUTO = ("RESUME", "auto")
LOADING = ("DATALOADER.NUM_WORKERS", "2", "DATASETS.CACHE", "no")


@pytest.fixture(scope="module")
def reference(tiny_root, tmp_path_factory):
    """An uninterrupted run → its folder."""
    output = tmp_path_factory.mktemp("reference") / "run"
    assert call(three_epochs(tiny_root, "OUTPUT_DIR", output)) == 0
    return output


@pytest.fixture(scope="module")
def killed_run(tiny_root, tmp_path_factory):
    """A run that ended in its second epoch → its folder, for tests to copy."""
    output = tmp_path_factory.mktemp("killed") / "run"
    with at(Meter, "update", 8, kill):
        assert call(three_epochs(tiny_root, "OUTPUT_DIR", output)) == 130
    return output


@pytest.fixture
def run_copy(killed_run, tmp_path):
    return shutil.copytree(killed_run, tmp_path / "run")


PLACES = {
    "in a step": (Meter, "update", 9, ()),
    "in an evaluation": (reid, "evaluate_reid", 2, LOADING),
    "between evaluation and saving": (Run, "save", 2, ()),
    "before anything was saved": (Meter, "update", 9, ("SOLVER.CHECKPOINT_PERIOD", "2")),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_continued_run_ends_like_an_uninterrupted_one(reference, tiny_root, tmp_path, place):
    owner, name, number, more = PLACES[place]
    words = three_epochs(tiny_root, "OUTPUT_DIR", tmp_path / "run", *AUTO, *more)
    with at(owner, name, number, kill):
        assert call(words) == 130
    assert call(words) == 0
    assert_same(reference, tmp_path / "run")


def members(group):
    """The processes of a process group that run."""
    actual = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            actual += [stat.parent.name] if int(of) == group and state != "Z" else []
    return actual


ENDS = (
    (signal.SIGKILL, -signal.SIGKILL, lambda output: any(output.glob(".last.pth.*.part"))),
    (signal.SIGTERM, -signal.SIGTERM, lambda output: True),
    (signal.SIGINT, 130, lambda output: True),
)
"""Signals to a run and its loading processes: how it ends, and when they arrive after it has saved an epoch."""


@pytest.mark.slow
def test_signals_end_a_run_at_once_which_continues_to_the_same_end(tiny_root, tmp_path):
    words = three_epochs(tiny_root, *AUTO, *LOADING, "SOLVER.MAX_EPOCHS", "9", "MODEL.DEPTH", "2")
    output = tmp_path / "run"
    last = output / "last.pth"
    for number, code, is_moment in ENDS:
        before = last.stat().st_mtime_ns if last.exists() else None
        with started("train_net.py", *words, "OUTPUT_DIR", output) as process:
            while not last.exists() or last.stat().st_mtime_ns == before or not is_moment(output):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.0005)
            os.killpg(process.pid, number)
            _, stderr = process.communicate()
        assert process.returncode == code and "Traceback" not in stderr, stderr
        until = time.monotonic() + 60
        while members(process.pid):  # no loading process stays
            assert time.monotonic() < until
            time.sleep(0.1)
    assert json.loads((output / "run.json").read_text())["status"] == "stopped"
    assert call([*words, "OUTPUT_DIR", tmp_path / "undisturbed"]) == 0
    assert call([*words, "OUTPUT_DIR", output]) == 0
    assert_same(tmp_path / "undisturbed", output)
    assert not list(output.glob(".*.part"))


@pytest.mark.slow
def test_seps_goes_on_likewise(shapes_root, tmp_path):
    more = ("MODEL.SDTPS_USE_GUMBEL", "True", "MODEL.DROP_PATH", "0.2", *AUTO)
    words = seps_cli_args_for(shapes_root, *more)
    assert call([*words, "OUTPUT_DIR", tmp_path / "reference"], seps.train) == 0
    with at(Meter, "update", 5, kill):
        assert call([*words, "OUTPUT_DIR", tmp_path / "run"], seps.train) == 130
    assert call([*words, "OUTPUT_DIR", tmp_path / "run"], seps.train) == 0
    assert_same(tmp_path / "reference", tmp_path / "run")


def test_every_random_generator_goes_on():
    def draws():
        return random.random(), random.gauss(0, 1), np.random.randn(), torch.rand(1)

    draws()  # Python and NumPy keep the second of a pair of normal numbers
    states = random_states()
    expected = draws()
    draws()
    set_random_states(states)
    assert draws() == expected


def test_what_is_written_goes_on_too(run_copy, reference, tiny_root):
    """log.txt, run.json and TensorBoard, where the killed run was ahead of its checkpoint."""
    with SummaryWriter(run_copy) as board:  # a point of an epoch that the checkpoint does not have
        board.add_scalar("train/loss", 99.0, 2)
    # TensorBoard reads files in the order of their names, which begin with the second
    time.sleep(1.1)
    before = (run_copy / "log.txt").read_text()
    started = json.loads((run_copy / "run.json").read_text())
    assert started["status"] == "stopped"
    assert call(three_epochs(tiny_root, "OUTPUT_DIR", run_copy, "RESUME", "yes")) == 0
    assert_same(reference, run_copy)
    log = (run_copy / "log.txt").read_text()
    assert log.startswith(before) and "may differ" not in log[len(before) :]
    assert "continuing after epoch 1" in log[len(before) :]
    run = json.loads((run_copy / "run.json").read_text())
    assert run["status"] == "finished" and "error" not in run
    assert run["started"] == started["started"]
    (entry,) = run["resumptions"]
    assert entry["epoch"] == 1 and entry["commit"] == run["commit"]
    board = EventAccumulator(str(run_copy))
    board.Reload()
    points = [(event.step, event.value) for event in board.Scalars("train/loss")]
    assert points == [
        (record["epoch"], pytest.approx(record["loss"], rel=1e-5))
        for record in load_records(run_copy)
    ]


def test_nothing_is_left_to_do(reference, tiny_root, command):
    """Also where run.json does not say so, of a run that was killed after its last checkpoint."""
    before, path = contents(reference), reference / "run.json"
    path.write_text(path.read_text().replace('"finished"', '"running"'))
    words = three_epochs(tiny_root, "OUTPUT_DIR", reference, *AUTO)
    code, stdout, _ = command(train_net.main, *words)
    assert code == 0 and "is finished (epoch 3); nothing is left to do." in stdout
    assert contents(reference) == before


def test_another_machine_is_a_warning(run_copy, tiny_root):
    record = json.loads((run_copy / "run.json").read_text())
    record["machine"] |= {"cpu": "ABACUS", "threads": 64, "processes": 3}
    record["versions"]["torch"] = "0.4"
    (run_copy / "run.json").write_text(json.dumps(record))
    with at(Meter, "update", 1, kill):
        assert call(three_epochs(tiny_root, "OUTPUT_DIR", run_copy, *AUTO)) == 130
    lines = (run_copy / "log.txt").read_text().splitlines()
    (warning,) = (line for line in lines if "WARNING numbers may differ" in line)
    phrases = ("torch 0.4 (now", "cpu ABACUS (now", "threads 64 (now", "processes 3 (now 1)")
    assert all(phrase in warning for phrase in phrases)


def test_a_finished_run_can_be_made_longer(reference, tiny_root, tmp_path):
    output = shutil.copytree(reference, tmp_path / "run")
    assert call(three_epochs(tiny_root, "OUTPUT_DIR", output, *AUTO, "SOLVER.MAX_EPOCHS", "4")) == 0
    records = load_records(output)
    assert records[:3] == load_records(reference)
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    assert "SOLVER.MAX_EPOCHS is 4 and was 3: " in (output / "log.txt").read_text()


REFUSED = {
    "another configuration": ([*AUTO, "SOLVER.SEED", "7"], "SOLVER.SEED"),
    "a run to replace and to continue": ([*AUTO, "--overwrite"], "--overwrite"),
    "nothing to continue": (["RESUME", "yes", "OUTPUT_DIR", "none"], "OUTPUT_DIR none"),
    "a run in the folder": ([], "--overwrite"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_continued(refusal, run_copy, tiny_root, name):
    words, reason = REFUSED[name]
    words = three_epochs(tiny_root, "OUTPUT_DIR", run_copy, *words)
    assert reason in refusal(train_net.main, *words)


def test_what_a_run_starts_from_is_not_overwritten(refusal, run_copy, tiny_root):
    for place in (run_copy, run_copy / "last.pth"):
        words = ("OUTPUT_DIR", run_copy, "--overwrite", "TEST.WEIGHT", place)
        assert str(place) in refusal(train_net.main, *three_epochs(tiny_root, *words))
    assert (run_copy / "last.pth").exists()


@pytest.mark.parametrize("resume", ["auto", "yes", "no"])
def test_a_finished_run_without_its_checkpoint(refusal, reference, tiny_root, tmp_path, resume):
    """Nor is what is somebody else's replaced."""
    output = shutil.copytree(reference, tmp_path / "run")
    (output / "last.pth").unlink()
    words = three_epochs(tiny_root, "OUTPUT_DIR", output, "RESUME", resume)
    assert str(output) in refusal(train_net.main, *words)


def test_other_data_are_refused(refusal, run_copy, own_root, tmp_path, reference):
    moved = own_root.rename(tmp_path / "moved")
    twin = shutil.copytree(run_copy, tmp_path / "twin")
    # the same data in another place
    assert call(three_epochs(moved, "OUTPUT_DIR", twin, *AUTO)) == 0
    assert_same(reference, twin)
    words = three_epochs(moved, "OUTPUT_DIR", run_copy, *AUTO)
    last = [sorted(folder.iterdir())[-1] for folder in (moved / "RGBNT201/train_171").iterdir()]
    for path in last:
        path.rename(tmp_path / path.parent.name)
    assert "The data, or" in refusal(train_net.main, *words)
    for path in last:
        (tmp_path / path.parent.name).rename(path)
    first = sorted((moved / "RGBNT201" / "test" / "NI").iterdir())[0]
    first.write_bytes(first.read_bytes() + b"0")
    assert "The data, or" in refusal(train_net.main, *words)


def test_the_digest_of_data_has_names_order_sizes_and_texts(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.jpg", "b.jpg")]
    for path in paths:
        open(path, "w").close()

    def digest(paths, *captions):
        return digest_lines([*file_lines(str(tmp_path), paths), *captions])

    first = digest(paths, "a dog", "a cat")
    assert first == digest(paths, "a dog", "a cat")
    others = [digest(paths[::-1], "a dog", "a cat"), digest(paths, "a cat", "a dog")]
    (tmp_path / "b.jpg").write_text("longer")
    assert first not in [*others, digest(paths, "a dog", "a cat"), digest(paths, "a do", "ga cat")]


def test_a_checkpoint_that_cannot_be_continued_is_named(run_copy, refusal, tiny_root):
    """One that is cut short, and weights alone."""
    words, last = three_epochs(tiny_root, *AUTO, "OUTPUT_DIR", run_copy), run_copy / "last.pth"
    content = torch.load(last, weights_only=True)
    last.write_bytes(last.read_bytes()[:-1000])
    assert str(last) in refusal(train_net.main, *words)
    del content["digest"]
    torch.save(content, last)
    assert str(last) in refusal(train_net.main, *words)
