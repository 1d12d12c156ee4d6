"""Commands that a signal ends while they write (config/ending.py), and what SIGKILL leaves (config/files.py)."""
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT
from demo_sdtps.config.ending import ending_in_order
from launch import children_of, command_of
from test_shards import write

from demo_sdtps.config.files import atomic_write, check_output_file, temporaries

WRITE = """
import os, sys, time
from pathlib import Path
from demo_sdtps.config import cli, ending
from demo_sdtps.config.files import atomic_write

def main():
    with atomic_write(Path(sys.argv[1])) as temporary:
        temporary.write_text("half")
        child = CHILD
        try:
            print(child, flush=True)
            time.sleep(60)
        finally:
            time.sleep(float(sys.argv[2]))

ending.DEADLINE = 1
cli.run(main)
"""
FORK = "os.fork() or time.sleep(60)"


@contextmanager
def writing(path, cleaning=0.0, child="0", **options):
    """A process that is writing a file and takes so many seconds to clean up: → it, and the process that it has forked."""
    words = [sys.executable, "-c", WRITE.replace("CHILD", child), str(path), str(cleaning)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize(("number", "cleaning", "left"), [
    (signal.SIGTERM, 0, 0), (signal.SIGHUP, 0, 0), pytest.param(signal.SIGTERM, 0.5, 0, marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, 60, 1, marks=pytest.mark.slow)])
def test_a_signal_ends_a_command_which_removes_what_is_half_written(tmp_path, number, cleaning, left):
    """Once: torchrun and a cluster may both send it. A clean-up without an end is cut after the deadline."""
    with writing(tmp_path / "x.json", cleaning) as (process, _):
        assert len(temporaries(tmp_path, ["x.json"])) == 1
        process.send_signal(number)
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(30) == 128 + number and not process.stderr.read()
    assert len(left_in(tmp_path)) == left


def test_a_signal_that_is_ignored_remains_so(tmp_path):
    """nohup starts a command with SIGHUP ignored."""
    with writing(tmp_path / "x.json", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as (process, _):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_forked_process_ends_without_the_clean_up_of_its_parent(tmp_path):
    with writing(tmp_path / "x.json", child=FORK) as (process, child):
        before, until = left_in(tmp_path), time.monotonic() + 30
        while "zombie" not in Path(f"/proc/{child}/status").read_text():
            os.kill(child, signal.SIGTERM)  # again, as Python drops one that comes at the moment of the fork
            time.sleep(0.1)
            assert time.monotonic() < until
        assert left_in(tmp_path) == before and process.poll() is None
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not left_in(tmp_path)


TRAIN = """
import signal, sys
from demo_sdtps.config import cli
from demo_sdtps.engine.run.stop import STOP

def at(place):
    if place == sys.argv[1]:
        signal.raise_signal(signal.SIGTERM)
    print(place, STOP.requested)

def main():
    at("before")
    with STOP.listening():
        at("inside")
    at("after")

cli.run(main)
"""


@pytest.mark.parametrize(("place", "code", "said"), [
    ("before", 143, ""), ("inside", 0, "before \ninside SIGTERM\nafter SIGTERM\n"), ("after", 143, "before \ninside \n")])
def test_a_training_handles_signals_itself_and_its_command_does_so_before_and_after(place, code, said):
    done = subprocess.run([sys.executable, "-c", TRAIN, place], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


def test_handlers_are_as_before_and_other_threads_have_none():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    assert before == [signal.SIG_DFL] * 2
    with ending_in_order():
        assert all(callable(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGHUP))
        with ending_in_order():  # a command that calls another
            pass
        assert all(callable(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGHUP))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
    thread = threading.Thread(target=ending_in_order().__enter__)
    thread.start()
    thread.join()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_what_a_killed_command_has_left_is_removed_by_the_next_one_of_the_same_output(tmp_path):
    """While a process is writing the file, its temporary one stays, and so do those of other files."""
    with writing(tmp_path / "x.json") as (killed, _), writing(tmp_path / "y.json") as (other, _):
        check_output_file(tmp_path / "x.json", ".json")
        assert len(left_in(tmp_path)) == 2
        for process in (killed, other):
            process.kill()
            process.wait()
        with atomic_write(tmp_path / "x.json") as own:
            check_output_file(tmp_path / "x.json", ".json")
            assert left_in(tmp_path) == [own.name, *(path.name for path in temporaries(tmp_path, ["y.json"]))]




def test_no_file_is_removed_between_its_making_and_its_locking(tmp_path):
    path, is_done = tmp_path / "x.json", threading.Event()

    def remove():
        while not is_done.is_set():
            check_output_file(path, ".json", overwrite=True)

    others = [threading.Thread(target=remove) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for number in range(100):
            with atomic_write(path) as temporary:
                temporary.write_text(str(number))
    finally:
        is_done.set()
        for other in others:
            other.join()
    assert path.read_text() == "99" and left_in(tmp_path) == ["x.json"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "left"), [(signal.SIGTERM, 0), pytest.param(signal.SIGKILL, 1, marks=pytest.mark.soak)])
def test_a_real_command_that_is_ended_while_it_writes(tmp_path, number, left):
    """The CSV of a search among many features takes its time."""
    rows = np.arange(8_000)
    features = np.random.default_rng(0).standard_normal((len(rows), 64), np.float32)
    folder, output = write(tmp_path / "features", features, rows // 2, rows % 2, rows=len(rows)), tmp_path / "out" / "x.csv"
    words = ["--query", folder, "--gallery", folder, "--exclude", "camera", "--csv", output, "--top", "1000"]
    with subprocess.Popen([sys.executable, str(ROOT / "tools" / "rank_features.py"), *map(str, words)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        while not temporaries(output.parent, [output.name]):
            assert command.poll() is None, command.stderr.read()
            time.sleep(0.01)
        began = time.monotonic()
        command.send_signal(number)
        assert command.wait(60) == {signal.SIGTERM: 143}.get(number, -number) and time.monotonic() - began < 30
        assert not command.stdout.read() and "Traceback" not in command.stderr.read()
    assert len(left_in(output.parent)) == left
    check_output_file(output, ".csv")
    assert not left_in(output.parent)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("killed", "left"), [(1, 0), (0, 1)])
def test_a_process_that_dies_ends_the_one_that_writes_and_the_one_that_waits(tmp_path, killed, left):
    """torchrun ends the other by SIGTERM: in the middle of a file, which is removed, or of an exchange."""
    output = tmp_path / "x.json"
    with subprocess.Popen(command_of("tests/writes_long.py", output), stderr=subprocess.PIPE, text=True) as starter:
        try:
            while not temporaries(tmp_path, [output.name]):
                assert starter.poll() is None, starter.stderr.read()
                time.sleep(0.1)
            workers = children_of(starter.pid)
            time.sleep(2)  # until the other process waits
            os.kill(workers[killed], signal.SIGKILL)
            began = time.monotonic()
            assert starter.wait(60) == 1 and time.monotonic() - began < 60
            assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
        finally:
            starter.kill()
        assert "writes_long.py\", line" not in starter.stderr.read()
    assert len(left_in(tmp_path)) == left
    check_output_file(output, ".json")
    assert not left_in(tmp_path)
