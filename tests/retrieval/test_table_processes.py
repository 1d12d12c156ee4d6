"""A gallery's index with killed and simultaneous processes."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from commands import ROOT
from gallery_process import BATCH, COUNT, hits_at, paint, update_index
from numeric import numpy_generator

from demo_sdtps.retrieval import gallery

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")]),
}
KILLS = int(os.environ.get("TEST_KILLS", "4"))
pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "BATCH", BATCH)
    paint(tmp_path, range(COUNT), 0)
    (tmp_path / "log").write_text("")
    return tmp_path


def start(place, *before):
    """A process that updates and searches the index when it is told to."""
    words = [*before, sys.executable, ROOT / "tests" / "helpers" / "gallery_process.py", place]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(words, text=True, cwd=ROOT, env=ENVIRONMENT, **pipes)
    while (line := process.stdout.readline()) != "ready\n":
        assert line, process.stderr.read()
    return process


def tell(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def undisturbed(place):
    """The hits of an index that is made anew."""
    with tempfile.TemporaryDirectory() as other:
        os.symlink(place / "gallery", Path(other, "gallery"))
        update_index(Path(other))
        return hits_at(other)


@pytest.mark.soak
def test_killed_processes_lose_the_batch_in_hand_at_most(place):
    """At random moments of making an index and of bringing it up to date; the next command goes on."""
    draws = numpy_generator(1)
    seconds = float(start(place).communicate("go\n")[0].split()[-1])
    for number in range(KILLS):
        if number % 3 == 0:
            shutil.rmtree(place / "index")
        else:
            paint(place, draws.permutation(COUNT)[: COUNT // 3], number)
        (place / "log").write_text("")
        tell(process := start(place))
        time.sleep(seconds * draws.random())
        process.kill()
        process.communicate()
        batches = [line.split() for line in (place / "log").read_text().splitlines()]
        (place / "log").write_text("")
        update_index(place, log=place / "log")
        rest = (place / "log").read_text().split()
        assert {*rest}.isdisjoint(itertools.chain(*batches[:-1]))
        assert hits_at(place) == undisturbed(place) and not any(update_index(place))


@pytest.mark.soak
def test_two_processes_that_update_an_index_at_once_leave_a_right_one(place):
    """A new one, then changed images; one of them may be refused."""
    for number in range(2):
        paint(place, range(number * COUNT // 2), number)
        both = [start(place), start(place)]
        for process in both:
            tell(process)
        for process in both:
            _, errors = process.communicate()
            refusal = "was changed by another process meanwhile"
            assert process.returncode == 0 or refusal in errors, errors
        update_index(place)
        assert hits_at(place) == undisturbed(place)
