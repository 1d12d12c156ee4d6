"""OUTPUT_DIR belongs to one run at a time, and a run replaces no file that no run wrote (engine/run/, config/lock.py)."""
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import CONFIG, ONE_LINE, ROOT, SMALL, cli_args_for, contents
from interrupted import at
from launch import torchrun
from seps_tiny import cli_args_for as seps_cli_args_for

from demo_sdtps import train_net, train_seps
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.lock import LOCK, locked
from demo_sdtps.engine.run.recognised import check_replaceable, check_resumable
from demo_sdtps.engine.trainer import Trainer

HOLD = """
import os, sys, time
from pathlib import Path
from demo_sdtps.config.lock import locked
with locked(Path(sys.argv[1]), "it"):
    if not os.fork():
        print(os.getppid(), flush=True)  # by the child, which has closed its copy of the lock by now
    time.sleep(60)
"""
LAST_LINE = -1
SHORT = (*SMALL, "SOLVER.MAX_EPOCHS", "1", "SOLVER.EVAL_UNTRAINED", "False")


def refused(command, main, *words):
    """Call a command, which must end with one sentence: → that sentence."""
    code, stdout, stderr = command(main, *words)
    assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1 and stderr.endswith(".\n")
    return stderr


def test_a_lock_is_for_one_and_leaves_nothing(tmp_path):
    file = tmp_path / "new" / "folder" / LOCK
    with locked(file, "it"):
        said = rf"^it is in use by process {os.getpid()} on \S+, since 20\S+ \(python .+\); wait"
        with pytest.raises(UserError, match=said), locked(file, "it"):
            pass
        assert file.exists(), "a refused owner removes nothing"
    assert not list(tmp_path.iterdir())
    with locked(file, "it"):
        (file.parent / "mine").touch()
    assert contents(tmp_path) == {"new/folder/mine": b""}


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("demo_sdtps.config.lock.fcntl.flock", unsupported)
    with locked(tmp_path / LOCK, "OUTPUT_DIR x"):
        assert "OUTPUT_DIR x is not locked" in caplog.text
    assert not contents(tmp_path)


@pytest.mark.parametrize("content", [b"mine", b"{}"])
def test_a_file_of_the_user_is_no_lock(tmp_path, content):
    (tmp_path / LOCK).write_bytes(content)
    with pytest.raises(UserError, match="is not a lock of this program"), locked(tmp_path / LOCK, "it"):
        pass
    (tmp_path / "link").symlink_to(tmp_path / LOCK)
    with pytest.raises(UserError, match="cannot be written"), locked(tmp_path / "link", "it"):
        pass
    assert (tmp_path / LOCK).read_bytes() == content


def test_the_lock_of_a_killed_process_frees_itself(tmp_path):
    """Though its child, like a loading process, outlives it; the file that it leaves is no lock."""
    file = tmp_path / LOCK
    words = [sys.executable, "-c", HOLD, str(file)]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        owner = holder.stdout.readline().strip()
        with pytest.raises(UserError, match=f"process {owner} on "), locked(file, "it"):
            pass
        holder.kill()
        holder.wait()
        assert json.loads(file.read_text())["process"] == int(owner)
        with locked(file, "it"):
            assert json.loads(file.read_text())["process"] == os.getpid()
    finally:
        os.killpg(holder.pid, signal.SIGKILL)  # the child
        holder.stdout.close()


@pytest.mark.parametrize(("main", "words"), [(train_net.main, ()), (train_net.main, ("--overwrite",)),
                                             (train_net.main, ("RESUME", "auto")), (train_seps.main, ("--overwrite",))])
def test_a_folder_in_use_is_refused_before_anything_is_read(tmp_path, command, main, words):
    """There are no data, and the second is told of the first instead."""
    given = cli_args_for(tmp_path) if main is train_net.main else seps_cli_args_for(tmp_path)
    output = tmp_path / "run"
    with locked(output / LOCK, "it"):
        before = contents(tmp_path)
        said = refused(command, main, *given, "OUTPUT_DIR", output, *words)
        assert f"OUTPUT_DIR {output} is in use by process {os.getpid()} on " in said and contents(tmp_path) == before
    refused(command, main, *given, "OUTPUT_DIR", output, *words)  # there are no data
    assert not list(tmp_path.iterdir())


FOREIGN = {"config.yml": "MODEL: {NAME: DeMo}\n", "log.txt": "what I did\n", "run.json": '{"mine": 1}', "metrics.json": "[1]",
           "last.pth": "mine", "best.pth": "mine", "events.out.tfevents.1": "mine"}


@pytest.mark.parametrize("words", [(), ("--overwrite",), ("RESUME", "auto")], ids=" ".join)
@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_the_user_is_not_replaced(tmp_path, tiny_root, command, name, words):
    output = tmp_path / "run"
    output.mkdir()
    (output / name).write_text(FOREIGN[name])
    said = refused(command, train_net.main, *cli_args_for(tiny_root, "OUTPUT_DIR", output, *SHORT, *words))
    assert name in said and contents(output) == {name: FOREIGN[name].encode()}


def test_the_weights_that_a_run_begins_with_are_not_replaced(tmp_path, tiny_root, command, written):
    output = Path(shutil.copytree(written, tmp_path / "run"))
    (tmp_path / "link.pth").symlink_to(output / "last.pth")
    said = refused(command, train_net.main, *cli_args_for(tiny_root, "OUTPUT_DIR", output, "--overwrite", *SHORT,
                                                          "MODEL.PRETRAIN_PATH_T", tmp_path / "link.pth"))
    assert "MODEL.PRETRAIN_PATH_T" in said and contents(output) == contents(written)


@pytest.fixture(scope="module")
def written(tmp_path_factory, tiny_root):
    """The OUTPUT_DIR of a run, as an earlier release leaves it: config.yml has fewer keys, and there is no run.json."""
    output = tmp_path_factory.mktemp("written")
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root)[2:])
    (output / "config.yml").write_text("".join(line for line in cfg.dump().splitlines(True) if "SLIM" not in line))
    (output / "metrics.json").write_text('[{"epoch": 1}]')
    (output / "log.txt").write_text("2025-01-31 10:20:30,400 INFO device cpu\nfree text\n")
    (output / "last.pth").write_text("damaged")
    return output


def test_a_run_is_recognised_by_what_training_writes(written, tmp_path):
    """Its configuration, its record, or a checkpoint with a configuration, whichever is left."""
    check_resumable(written)
    check_replaceable(written, overwrite=True)
    with pytest.raises(UserError, match="already holds a run"):
        check_replaceable(written, overwrite=False)
    (tmp_path / "log.txt").write_text((written / "log.txt").read_text())
    with pytest.raises(UserError, match=r"holds log\.txt, which no training wrote"):
        check_replaceable(tmp_path, overwrite=True)
    for name, write in (("run.json", lambda path: path.write_text('{"command": "", "seed": 1, "versions": {}}')),
                        ("best.pth", lambda path: torch.save({"model": {}, "config": "OUTPUT_DIR: x"}, path))):
        write(tmp_path / name)
        check_replaceable(tmp_path, overwrite=True)
        (tmp_path / name).unlink()


@pytest.mark.parametrize("name", ["config.yml", "log.txt", "run.json", "metrics.json"])
def test_a_file_of_the_user_in_a_run_is_not_replaced(written, tmp_path, name):
    output = shutil.copytree(written, tmp_path / "run")
    (output / name).write_text(FOREIGN[name])
    for check in (check_resumable, lambda output: check_replaceable(output, overwrite=True)):
        with pytest.raises(UserError, match=f"holds {name}, which no training wrote"):
            check(output)


def test_a_link_in_a_run_is_not_followed(written, tmp_path):
    output = shutil.copytree(written, tmp_path / "run")
    (output / "best.pth").symlink_to(tmp_path / "nothing")
    for check in (check_resumable, lambda output: check_replaceable(output, overwrite=True)):
        with pytest.raises(UserError, match=r"best\.pth exists and is not a regular file"):
            check(output)


def test_output_dir_in_the_data_set_is_refused(tiny_root, command):
    before = contents(tiny_root)
    output = tiny_root / "RGBNT201" / "run"
    said = refused(command, train_net.main, *cli_args_for(tiny_root, "OUTPUT_DIR", output, "--overwrite"))
    assert f"OUTPUT_DIR {output} lies in {tiny_root / 'RGBNT201'}" in said and contents(tiny_root) == before


@pytest.mark.parametrize("replace", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["removed", "replaced"])
def test_a_folder_that_goes_in_a_run_ends_it(tiny_root, tmp_path, command, replace):
    """And what a killed run left half-written goes at the start."""
    output, left = tmp_path / "run", f".last.pth.{16 * 'a'}.part"
    output.mkdir()
    (output / left).touch()

    def go():
        assert not (output / left).exists() and (output / LOCK).exists()
        shutil.rmtree(output)
        if replace:
            output.mkdir()
            (output / "last.pth").write_text("of another run")

    with at(Trainer, "_train_step", 2, go):
        code, _, stderr = command(train_net.main, *cli_args_for(tiny_root, "OUTPUT_DIR", output, *SHORT))
    said = stderr.splitlines()[LAST_LINE]
    assert code == 2 and said.startswith(f"{ONE_LINE}OUTPUT_DIR {output} was removed or replaced") and said.endswith(".")
    assert contents(tmp_path) == ({"run/last.pth": b"of another run"} if replace else {})


@pytest.mark.slow
@pytest.mark.soak
def test_of_two_runs_started_at_once_one_is_refused(tiny_root, tmp_path):
    """With another learning rate: configuration and weights are of the one that goes on."""
    output = tmp_path / "run"
    words = cli_args_for(tiny_root, "OUTPUT_DIR", output, "--overwrite", *SHORT, "SOLVER.MAX_EPOCHS", 9)
    runs = [subprocess.Popen([sys.executable, str(ROOT / "train_net.py"), *words, "SOLVER.BASE_LR", rate],
                             stderr=subprocess.PIPE, text=True) for rate in ("1e-4", "2e-4")]
    said = [run.communicate(timeout=300)[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2], said
    loser = [run.returncode for run in runs].index(2)
    assert f"is in use by process {runs[1 - loser].pid} on " in said[loser] and "Traceback" not in said[loser]
    config = torch.load(output / "last.pth", weights_only=True)["config"]
    assert config == (output / "config.yml").read_text() and f"BASE_LR: {('0.0001', '0.0002')[1 - loser]}\n" in config
    assert not (output / LOCK).exists()


@pytest.mark.slow
@pytest.mark.soak
def test_under_torchrun_one_sentence_refuses_all(tiny_root, tmp_path):
    with locked(tmp_path / "run" / LOCK, "it"):
        done = torchrun("train_net.py", *cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / "run", *SHORT))
    assert done.returncode == 1 and done.stderr.count("is in use by process") == 1 and "Another process" not in done.stderr
    assert not (tmp_path / "run").exists()
