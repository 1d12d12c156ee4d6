"""Nothing waits for ever: signals that end a run (engine/run/stop.py), and resources of the machine that run out."""
import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from commands import ONE_LINE, ROOT, SMALL
from commands import cli_args_for as small_args_for
from tiny import CONFIG

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.shortage import naming_shortages
from demo_sdtps.datasets import loaders, read_splits
from demo_sdtps.datasets.images import decode
from demo_sdtps.datasets.loaders import batches, train_loader
from demo_sdtps.engine.run.resume import read_last
from demo_sdtps.engine.run.stop import STOP

PRIVATE_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm && exec "$@"', "64k")
"""Words before a command that has a small /dev/shm to itself."""
LOADING = ("DATASETS.CACHE", "no", "DATALOADER.NUM_WORKERS", "2", "SOLVER.MAX_EPOCHS", "1000", "SOLVER.EVAL_PERIOD", "1000")
TRAIN = """
import sys
from demo_sdtps import train_net
from demo_sdtps.config.cli import run
from demo_sdtps.engine.run import stop
stop.DEADLINE = float(sys.argv.pop(1))
run(train_net.main)
"""


@contextmanager
def started(root, output, *opts, deadline=25, wrapper=(), **options):
    """A training in a process group of its own, with the deadline in seconds, in its second epoch."""
    words = small_args_for(root, "OUTPUT_DIR", output, *LOADING, *opts)
    process = subprocess.Popen([*wrapper, sys.executable, "-c", TRAIN, str(deadline), *words], cwd=ROOT, text=True,
                               start_new_session=True, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} | options)
    try:
        log = output / "log.txt"
        wait_for(lambda: log.exists() and "epoch 1: loss" in log.read_text(), process)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr:
            process.stderr.close()


def wait_for(condition, process):
    deadline = time.monotonic() + 90
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def status_of(output):
    return json.loads((output / "run.json").read_text())


def block(root):
    """Replace the training images of a modality by named pipes, which nobody writes to: reading one waits for ever."""
    for path in (root / "RGBNT201" / "train_171" / "TI").iterdir():
        os.mkfifo(root / "pipe")
        (root / "pipe").replace(path)  # at no time is there no file


def members(group):
    """The processes of a process group that run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            found += [stat.parent.name] if int(of) == group and state != "Z" else []
    return found


@pytest.mark.slow
def test_a_lost_terminal_saves_the_run(tiny_root, tmp_path):
    """A terminal of its own, which is closed as by the end of an ssh session; the loading processes get SIGHUP too."""
    ours, theirs = pty.openpty()
    output = tmp_path / "run"
    attach = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    # The shell makes the terminal its own: it is that of the session's first process.
    shell = (sys.executable, "-c", "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
                                   "os.execvp(sys.argv[1], sys.argv[1:])")
    with started(tiny_root, output, wrapper=shell, **attach) as process:
        os.close(theirs)
        os.close(ours)
        assert process.wait(180) == 0
    assert status_of(output)["status"] == "stopped" and "stopped by SIGHUP" in (output / "log.txt").read_text()
    assert torch.load(output / "last.pth", weights_only=True)["epoch"] >= 1


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
def test_a_signal_is_noted_unless_it_is_ignored(name, monkeypatch):
    """nohup starts a command with SIGHUP ignored."""
    monkeypatch.setattr(STOP, "requested", "")  # and as before afterwards: the tests that follow may train
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with STOP.listening():
            signal.raise_signal(number)
            assert not STOP.requested
        signal.signal(number, signal.SIG_DFL)
        with STOP.listening():
            signal.raise_signal(number)
            assert STOP.requested == name
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped")])
def test_a_signal_that_is_repeated_until_the_end_leaves_a_marked_run(tiny_root, tmp_path, number, status):
    output = tmp_path / "run"
    with started(tiny_root, output, "SOLVER.CHECKPOINT_PERIOD", "1") as process:
        while process.poll() is None:
            process.send_signal(number)
            time.sleep(0.003)
    assert status_of(output)["status"] == status and (status == "interrupted" or (output / "last.pth").exists())
    assert all(torch.load(path, weights_only=True)["epoch"] >= 1 for path in output.glob("*.pth"))


@pytest.mark.slow
def test_a_run_that_waits_for_an_image_ends_after_the_deadline(own_root, tmp_path):
    output = tmp_path / "run"
    with started(own_root, output, deadline=1) as process:
        block(own_root)
        time.sleep(1)  # until it waits
        os.killpg(process.pid, signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 128 + signal.SIGTERM
        for _ in range(300):  # the loading processes are killed before, and gone as soon as they get a processor
            if members(process.pid):
                time.sleep(0.1)
        assert not members(process.pid)
    assert "1 s after SIGTERM" in said and "Traceback" not in said
    assert status_of(output)["status"] == "interrupted" and "1 s after SIGTERM" in status_of(output)["error"]


DEAF = """
import ctypes, sys
from pathlib import Path
from demo_sdtps.engine.run import stop
stop.DEADLINE = 0.5
mutex = ctypes.create_string_buffer(64)
lock = ctypes.CDLL(None).pthread_mutex_lock
with stop.STOP.listening(Path(sys.argv[1]).write_text):
    lock(mutex)
    print("waiting", flush=True)
    lock(mutex)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the mutex is that of Linux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_waits_in_c_code_ends_too(tmp_path, number):
    """Python would call a handler when the call returns, which never happens."""
    with subprocess.Popen([sys.executable, "-c", DEAF, tmp_path / "mark"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.3)  # from the line to the wait
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert "not ended by itself" in (tmp_path / "mark").read_text()


def loading(root, *opts):
    """A training loader with two processes, and its samples."""
    cfg = load_cfg(CONFIG, ["DATASETS.ROOT_DIR", str(root), *SMALL, *LOADING[:4], *opts])
    return train_loader(cfg, read_splits(cfg, ("train",))["train"])


def test_a_loader_that_waits_for_an_image_reports_a_time_out(own_root, no_process_left, monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)  # how long torch waits for a process to end
    loader = loading(own_root, "DATALOADER.TIMEOUT", "0.5")
    block(own_root)
    with pytest.raises(UserError, match=r"No images .* for 0.5 s \(DATALOADER.TIMEOUT\)"):
        next(batches(loader))


def test_a_loading_process_that_the_system_kills_is_lack_of_memory(tiny_root, no_process_left):
    before = set(active_children())
    loaded = batches(loading(tiny_root))
    next(loaded)
    with pytest.raises(UserError, match="lack of memory; lower DATALOADER"), naming_shortages():
        os.kill((set(active_children()) - before).pop().pid, signal.SIGKILL)
        time.sleep(5)
    loaded.close()


def test_the_loading_processes_ignore_sighup_where_the_run_does(tiny_root, no_process_left, monkeypatch):
    monkeypatch.setattr(loaders, "GRACE", 1)
    before, others = signal.signal(signal.SIGHUP, signal.SIG_IGN), set(active_children())
    try:
        loaded = batches(loading(tiny_root))
        next(loaded)
        workers = set(active_children()) - others
        for worker in workers:
            os.kill(worker.pid, signal.SIGHUP)
        time.sleep(1.5)
        assert len(workers) == 2 and all(worker.is_alive() for worker in workers)
        loaded.close()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("read", [lambda path: decode(str(path)), lambda path: read_last(path.parent)],
                         ids=["an image", "a checkpoint"])
def test_a_file_is_not_to_blame_for_open_files(tiny_root, tmp_path, read):
    path = shutil.copy(next((tiny_root / "RGBNT201" / "train_171" / "RGB").iterdir()), tmp_path / "last.pth")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(UserError) as raised, naming_shortages():
            read(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "ulimit -n" in str(raised.value) and "last.pth" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(("wrapper", "part"), [
    pytest.param(PRIVATE_SHARED_MEMORY, "/dev/shm, through which", id="shared memory"),
    pytest.param(["sh", "-c", 'ulimit -n 24; exec "$0" "$@"'], "(ulimit -n)", id="open files"),
])
def test_what_runs_out_is_named(tiny_root, tmp_path, wrapper, part):
    if "unshare" in wrapper and subprocess.run([*wrapper, "true"], capture_output=True).returncode:
        pytest.skip("a process here may not have a /dev/shm of its own")
    output = tmp_path / "run"
    words = small_args_for(tiny_root, "OUTPUT_DIR", output, *LOADING[:4])
    done = subprocess.run([*wrapper, sys.executable, str(ROOT / "train_net.py"), *words], cwd=ROOT, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith(ONE_LINE) and part in said and said.endswith(".")
    assert status_of(output)["status"] == "failed" and part in status_of(output)["error"]
