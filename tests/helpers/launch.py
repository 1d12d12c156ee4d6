"""Starts scripts of the project's by torchrun."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from commands import ROOT


def torchrun(script, *words):
    """Run a script of the project's in two processes: → the completed process."""
    return subprocess.run(command_of(script, *words), capture_output=True, text=True, timeout=300)


def command_of(script, *words):
    return [
        sys.executable,
        *shlex.split("-m torch.distributed.run --standalone --nproc_per_node=2"),
        str(ROOT / script),
        *map(str, words),
    ]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def kill_one_of_two(file, script, *words):
    """Run a script in two processes and kill one when `file` is there; that must end the other."""
    starter = subprocess.Popen(
        command_of(script, *words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(starter, file)
        workers = children_of(starter.pid)
        os.kill(workers[-1], signal.SIGKILL)
        assert starter.wait(60) == 1
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    finally:
        starter.kill()
        starter.stderr.close()


def wait_for(process, file):
    while not file.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)


def children_of(process):
    return [
        int(child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
