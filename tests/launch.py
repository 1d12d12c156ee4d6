"""Starts scripts of the project's by torchrun, on one machine and as on two."""
import os
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
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(ROOT / script),
            *map(str, words)]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_on_one_machine(script, *words):
    return [subprocess.Popen(command_of(script, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)]


def start_on_two_machines(script, *words, of_second=()):
    """Start a script of the project's by two torchrun, which find each other on this machine and have half its cores each, as
    two processes of one torchrun: → their processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d",
               f"--rdzv_endpoint=127.0.0.1:{free_port()}", "--local_addr=127.0.0.1", str(ROOT / script), *map(str, words)]
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    started = []
    try:
        for more, own in (((), cores[:half]), (of_second, cores[-half:])):
            os.sched_setaffinity(0, own)  # which a process inherits
            started.append(subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    finally:
        os.sched_setaffinity(0, cores)
    return started


def on_two_machines(script, *words, of_second=()):
    """Run it to its end: → the completed processes."""
    started = start_on_two_machines(script, *words, of_second=of_second)
    try:
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    return [subprocess.CompletedProcess(process.args, process.returncode, *texts)
            for process, texts in zip(started, said, strict=True)]


def kill_one_of_two(file, script, *words):
    """Run a script in two processes and kill one when `file` is there; that must end the other."""
    starter = subprocess.Popen(command_of(script, *words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
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
    return [int(child) for task in Path(f"/proc/{process}/task").iterdir() for child in (task / "children").read_text().split()]
