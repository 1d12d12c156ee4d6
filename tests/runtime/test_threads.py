"""The number of threads: by affinity and quota, never over the user's own setting."""

import json
import os

import pytest
import torch
from commands import SMALL, cli_args_for

from demo_sdtps.commands import train as train_net
from demo_sdtps.runtime import threads

pytestmark = pytest.mark.usefixtures("shallow")


@pytest.mark.parametrize(
    ("files", "cores"),
    [({"cpu.max": "150000 100000"}, 1.5), ({"cpu.max": "max 100000"}, 1e6), ({}, 1e6)],
    ids=str,
)
def test_the_quota_of_a_container(tmp_path, files, cores):
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


def test_the_number_of_a_quota_is_not_the_users(monkeypatch):
    for name in (threads.THREADS, threads.OURS, "WORLD_SIZE"):
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
