"""The number of threads and how they wait: by affinity, quota and load, never over the user's own setting."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from commands import SMALL, cli_args_for

from demo_sdtps.commands import train as train_net
from demo_sdtps.runtime import threads

pytestmark = pytest.mark.usefixtures("shallow")

COMMAND = "from demo_sdtps.config.cli import run\nrun(lambda: None)"
PRINTED = "import os; print(os.environ.get('OMP_WAIT_POLICY'))"


@contextmanager
def busy_neighbours(count):
    """Context manager: `count` single-threaded processes compute without end."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, 1e6),
        ({}, 1e6),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
    ],
    ids=str,
)
def test_the_quota_of_a_container(tmp_path, files, cores):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert threads.cpu_quota(tmp_path) == cores


def test_processes_of_torchrun_share_the_cores(monkeypatch):
    alone = threads.cpu_cores()
    assert 1 <= alone <= os.cpu_count()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(2 * alone))
    assert threads.cpu_cores() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)}, raising=False)
    monkeypatch.setattr(threads, "cpu_quota", lambda: 5.6)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert threads.cpu_cores() == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the load is read from /proc")
def test_threads_wait_passively_beside_busy_processes_unless_the_user_says_otherwise():
    names = {name for name in os.environ if not name.startswith(("OMP_", "GOMP_"))}
    clean = {name: os.environ[name] for name in names}
    with busy_neighbours(os.cpu_count()):
        # a host decides for itself
        for start, environment, expected in (
            (COMMAND, {}, "PASSIVE"),
            (COMMAND, {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
            ("import demo_sdtps", {}, "None"),
        ):
            program = [sys.executable, "-c", f"{start}\n{PRINTED}"]
            printed = subprocess.check_output(program, env=clean | environment, text=True)
            assert printed.strip() == expected


def test_the_number_of_a_quota_is_not_the_users(monkeypatch):
    for name in (threads.THREADS, threads.OURS, threads.WAITING, "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(threads, "cpu_quota", lambda: 1.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    threads.prepare_threads()
    assert os.environ[threads.THREADS] == "1" and not threads.threads_by_user()
    monkeypatch.setenv(threads.THREADS, "3")
    threads.prepare_threads()
    assert os.environ[threads.THREADS] == "3" and threads.threads_by_user()


@pytest.mark.parametrize("by_user", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_resumed_run_computes_with_its_own_number_of_threads(
    tiny_root, tmp_path, command, monkeypatch, by_user
):
    before = torch.get_num_threads()
    words = cli_args_for(
        tiny_root, "OUTPUT_DIR", tmp_path / "run", small=(*SMALL, "SOLVER.EVAL_UNTRAINED", "False")
    )
    try:
        torch.set_num_threads(before + 1)
        assert command(train_net.main, *words, "SOLVER.MAX_EPOCHS", 1)[0] == 0
        torch.set_num_threads(before)
        if by_user:
            monkeypatch.setenv("OMP_NUM_THREADS", str(before))
        else:
            monkeypatch.delenv("OMP_NUM_THREADS")
        assert command(train_net.main, *words, "SOLVER.MAX_EPOCHS", 2, "RESUME", "yes")[0] == 0
    finally:
        torch.set_num_threads(before)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["machine"]["threads"] == before + 1
    assert record["resumptions"][0]["machine"]["threads"] == before + (not by_user)
    assert ("the run started with threads" in (tmp_path / "run" / "log.txt").read_text()) == by_user
