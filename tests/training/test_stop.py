"""SIGTERM, SIGHUP and the first Ctrl-C finish the step, save and end (training/monitor.py); the second ends at once."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from commands import ROOT, cli_args_for

from demo_sdtps.training.monitor import listen

LOADING = shlex.split(
    "DATASETS.CACHE no DATALOADER.NUM_WORKERS 2 SOLVER.MAX_EPOCHS 1000 SOLVER.EVAL_PERIOD 1000"
)
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@pytest.fixture(autouse=True)
def default_handlers():
    """The handlers of the tests' own process, which are restored afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_request_and_the_second_has_its_default(number, monkeypatch):
    for torchrun, second in ((False, signal.SIG_DFL), (True, signal.SIG_IGN)):
        if torchrun:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        before = signal.getsignal(number)
        with listen() as stop:
            signal.raise_signal(number)
            assert stop.signal == number.name
            assert {signal.getsignal(other) for other in SIGNALS} == {second}
        assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_remains_so():
    """nohup starts a command with SIGHUP ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with listen() as stop:
        signal.raise_signal(signal.SIGHUP)
    assert not stop.signal


@contextmanager
def start_training(root, output):
    """A training with loading processes, in a process group of its own and in its second epoch."""
    words = cli_args_for(root, "OUTPUT_DIR", output, *LOADING)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train_net.py"), *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 120
        log = output / "log.txt"
        while not log.exists() or "epoch 1: loss" not in log.read_text():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def members(group):
    """The processes of a process group that run."""
    actual = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            actual += [stat.parent.name] if int(of) == group and state != "Z" else []
    return actual


@pytest.mark.slow
def test_ctrl_c_to_a_run_and_its_loading_processes_saves(tiny_root, tmp_path):
    """No process is left."""
    output = tmp_path / "run"
    with start_training(tiny_root, output) as process:
        os.killpg(process.pid, signal.SIGINT)
        stderr = process.communicate(timeout=120)[1]
        assert process.returncode == 130 and "Traceback" not in stderr, stderr
        assert not members(process.pid)
    assert torch.load(output / "last.pth", weights_only=True)["epoch"] >= 1
    assert json.loads((output / "run.json").read_text())["status"] == "stopped"
    assert "stopped by SIGINT" in (output / "log.txt").read_text()


@pytest.mark.slow
def test_loading_processes_end_with_a_run_that_a_second_ctrl_c_ends(tiny_root, tmp_path):
    with start_training(tiny_root, tmp_path / "run") as process:
        os.kill(process.pid, signal.SIGSTOP)  # so that both arrive before the step ends
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGCONT)
        os.kill(process.pid, signal.SIGINT)
        process.wait(60)
        until = time.monotonic() + 60  # torch looks every 5 s whether the run still lives
        while members(process.pid):
            assert time.monotonic() < until
            time.sleep(0.1)
