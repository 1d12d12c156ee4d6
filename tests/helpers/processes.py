"""Scripts of the project's in processes of their own, and functions of tests in two that are started as torchrun does.

python tests/helpers/processes.py FOLDER FILE FUNCTION WORDS …    FOLDER/<rank>.pth: what a function of a test's file returns
python tests/helpers/processes.py --gloo WORDS …    train_net.py for processes that share a GPU, where NCCL before 2.30 refuses
"""

import importlib
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
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 300
"""Seconds after which a process hangs."""
TORCHRUN = shlex.split("-m torch.distributed.run --standalone --nproc_per_node=2")


@contextmanager
def started(*words, **environment):
    """Python with these words, in the project's folder and in a session of its own; killed at the end of the context."""
    command = [sys.executable, "-W", "ignore", *map(str, words)]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    settings = {"text": True, "start_new_session": True, "cwd": ROOT, **pipes}
    with subprocess.Popen(command, env=os.environ | environment, **settings) as process:
        try:
            yield process
        finally:
            process.kill()


def run(*words):
    """Run Python with these words → its returncode, stdout and stderr."""
    with started(*words) as process:
        stdout, stderr = process.communicate(timeout=LONGEST)
        return SimpleNamespace(returncode=process.returncode, stdout=stdout, stderr=stderr)


def run_two(*words):
    """Run Python in two processes as torchrun starts them → the largest returncode, stdout and stderr of both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared |= {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank, **shared} for rank in "01"]
    with started(*words, **ranks[0]) as first, started(*words, **ranks[1]) as second:
        outputs = [process.communicate(timeout=LONGEST) for process in (first, second)]
    stdout, stderr = map("".join, zip(*outputs, strict=True))
    code = max(abs(process.returncode) for process in (first, second))
    return SimpleNamespace(returncode=code, stdout=stdout, stderr=stderr)


def results_of_two(folder, file, function, *words):
    """What a function of a test's file, by its name, returns in each of two processes for words."""
    done = run_two(__file__, folder, file, function, *words)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pth") for rank in (0, 1)]


def wait_for(process, file):
    while not file.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)


def kill_child(process):
    """Kill the first child of a process → all its children."""
    children = [
        int(child)
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    os.kill(children[0], signal.SIGKILL)
    return children


def main(folder, file, function, *words):
    from demo_sdtps.runtime import distributed

    sys.path.append(str(Path(file).parent))
    with distributed.init_distributed():
        result = getattr(importlib.import_module(Path(file).stem), function)(*words)
        torch.save(result, Path(folder) / f"{distributed.rank()}.pth")


def train_by_gloo():
    """Train; gloo exchanges the gradients."""
    import torch.distributed as dist

    from demo_sdtps.commands import cli, train

    os.environ["LOCAL_RANK"], start = "0", dist.init_process_group
    with_gloo = lambda backend, **named: start("cpu:gloo,cuda:gloo", **named)  # noqa: E731
    with mock.patch.object(dist, "init_process_group", with_gloo):
        cli.run(train.main)


if __name__ == "__main__":
    if sys.argv[1] == "--gloo":
        del sys.argv[1]
        train_by_gloo()
    else:
        main(*sys.argv[1:])
