"""Outputs: checked before the work, written as a whole; and folders that one process uses at a time (runtime/files.py)."""

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from commands import contents

from demo_sdtps.commands import train as train_net
from demo_sdtps.config import UserError
from demo_sdtps.modeling.checkpoints.loading import save_whole
from demo_sdtps.runtime.device import log_to
from demo_sdtps.runtime.files import (
    LOCK,
    atomic_write,
    check_output_file,
    lock_file,
    read_json,
    write_json,
)
from seps import __main__ as seps


@contextmanager
def full_disk(limit=1000):
    """Context manager: no file may become larger than `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_written_whole_in_a_new_folder(tmp_path):
    path = tmp_path / "new" / "x.json"
    with atomic_write(path) as temporary:
        temporary.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, 1)
    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    sentence = r"x.json cannot be written \(File too large\); free some space"
    with pytest.raises(UserError, match=sentence), full_disk():
        save_whole({"a": torch.zeros(100_000)}, path)
    assert read_json(path, int) == 1 and list(tmp_path.iterdir()) == [path]


def test_each_of_several_writers_has_a_file_of_its_own(tmp_path):
    path = tmp_path / "x.json"
    with atomic_write(path) as first:
        first.write_text("first")
        with atomic_write(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first" and list(contents(tmp_path)) == ["x.json"]


@pytest.mark.parametrize("name", ["x.npy", "file/x.npz"])
def test_places_that_cannot_be_written(tmp_path, name):
    (tmp_path / "file").touch()
    sentence = "must be a file ending in .npz in a folder that can be written"
    with pytest.raises(UserError, match=sentence):
        check_output_file(tmp_path / name, ".npz")


def test_the_log_of_a_run_ends_with_it_and_leaves_the_users(tmp_path, monkeypatch):
    mine, root = logging.FileHandler(tmp_path / "mine.log"), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [mine])
    with log_to(tmp_path / "log.txt"):
        root.info("inside")
    root.info("after")
    mine.close()
    assert (tmp_path / "mine.log").read_text() == "inside\nafter\n"
    assert (tmp_path / "log.txt").read_text().endswith(" INFO inside\n")


def test_a_lock_is_for_one_and_leaves_nothing(tmp_path):
    file = tmp_path / "new" / "folder" / LOCK
    with lock_file(file, "OUTPUT_DIR x"):
        with (
            pytest.raises(UserError, match="OUTPUT_DIR x is in use"),
            lock_file(file, "OUTPUT_DIR x"),
        ):
            raise AssertionError
        assert file.exists()
    assert not list(tmp_path.iterdir())
    with lock_file(file, "OUTPUT_DIR x"):
        (file.parent / "result").touch()
    assert list(contents(tmp_path)) == ["new/folder/result"]


def test_the_lock_of_a_killed_process_is_free_though_its_loading_processes_live(tmp_path):
    program = f"""
import os, signal, time
from pathlib import Path
from demo_sdtps.runtime.files import lock_file
with lock_file(Path({str(tmp_path / LOCK)!r}), "it"):
    if os.fork():
        time.sleep(30)
    else:  # it prints once it has run what filelock registered for the child of a fork
        print(os.getpid(), flush=True)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(30)
"""
    done = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    child = int(done.stdout.readline())
    assert done.wait() == -signal.SIGKILL
    try:
        with lock_file(tmp_path / LOCK, "it"):
            assert Path(f"/proc/{child}").exists()
    finally:
        os.kill(child, signal.SIGKILL)
        done.stdout.close()


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    with lock_file(tmp_path / LOCK, "OUTPUT_DIR x"):
        assert "OUTPUT_DIR x is not locked, as its file system has no locks" in caplog.text


@pytest.mark.parametrize(
    ("main", "words"), [(train_net.main, ("--overwrite",)), (seps.train, ("RESUME", "auto"))]
)
def test_an_output_dir_in_use_is_refused_before_anything_is_read(tmp_path, refusal, main, words):
    config = "Synthetic/DeMo_SDTPS.yml" if main is train_net.main else "SEPS/shapes.yml"
    with lock_file(tmp_path / "run" / LOCK, "it"):
        message = refusal(main, "--config_file", config, "OUTPUT_DIR", "run", *words)
    assert "in use by another process" in message and not list(tmp_path.iterdir())
