"""Starts scripts of the project's in two processes by torchrun."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from commands import ROOT

TORCHRUN = shlex.split("-m torch.distributed.run --standalone --nproc_per_node=2")


@contextmanager
def torchrun_started(script, *words):
    """torchrun with a script, in a session of its own; killed at the end of the context."""
    command = [sys.executable, *TORCHRUN, str(ROOT / script), *map(str, words)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as starter:
        try:
            yield starter
        finally:
            starter.kill()


def torchrun(script, *words):
    """Run a script → its returncode and stderr."""
    with torchrun_started(script, *words) as starter:
        stderr = starter.communicate(timeout=300)[1]
        return SimpleNamespace(returncode=starter.returncode, stderr=stderr)


def kill_one_of_two(file, script, *words):
    """Run a script and kill one of its processes when `file` is there; that must end the other."""
    with torchrun_started(script, *words) as starter:
        wait_for(starter, file)
        workers = child_processes(starter.pid)
        os.kill(workers[-1], signal.SIGKILL)
        assert starter.wait(60) == 1
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(process, file):
    while not file.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)


def child_processes(process):
    return [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
