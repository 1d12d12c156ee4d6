"""A run that is killed resumes from its last checkpoint and ends bit-equal."""

import signal
import time

import pytest
from commands import ROOT
from forked import Script
from interrupted import EVERY_STEP, assert_same, call, cli_args_for

MOMENTS = {
    "after a save": lambda output: True,
    "while it saves": lambda output: any(output.glob("*.part")),
}


def start(root, output):
    words = cli_args_for(root, "OUTPUT_DIR", output, "RESUME", "auto", *EVERY_STEP)
    return Script(ROOT / "train_net.py", *words)


def last_save(output):
    path = output / "last.pth"
    return path.stat().st_mtime_ns if path.exists() else None


@pytest.mark.slow
def test_a_killed_run_ends_bit_equal(tiny_root, tmp_path):
    output = tmp_path / "killed"
    for is_moment in MOMENTS.values():
        before, process = last_save(output), start(tiny_root, output)
        while last_save(output) in (None, before) or not is_moment(output):
            assert process.poll() is None, "it ended before its kill"
            time.sleep(0.0005)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    for name in ("killed", "undisturbed"):
        assert call(cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path / name, "RESUME", "auto")) == 0
    assert_same(tmp_path / "undisturbed", tmp_path / "killed")
