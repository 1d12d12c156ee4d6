"""Training and evaluation by two processes that torchrun starts: the same as by one."""
import os
import subprocess
import sys

import pytest
import torch
from commands import ROOT, SMALL

CONFIGS = ROOT / "configs" / "Synthetic"
STILL = ("MODEL.DROP_PATH", "0.0")
"""Without what every process draws for itself."""


def torchrun(script, *words, processes=2, cwd=None):
    """Run a script of the project's in so many processes: → the completed process."""
    return subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}",
                           str(ROOT / script), *map(str, words)], cwd=cwd, capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)


@pytest.fixture(scope="module", params=["DeMo", "DeMo_SDTPS"])
def stepped(request, tmp_path_factory):
    """What one process and each of two have after a few steps."""
    folder = tmp_path_factory.mktemp(request.param)
    for count in (1, 2):
        done = torchrun("tests/two_processes.py", CONFIGS / f"{request.param}.yml", folder, *SMALL, *STILL, processes=count)
        assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{name}.pth") for name in ("0_of_1", "0_of_2", "1_of_2")]


def test_two_processes_step_like_one(stepped):
    alone, first, second = stepped
    for shared in (first, second):
        assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert shared["state"].keys() == alone["state"].keys()
        for name, value in alone["state"].items():
            torch.testing.assert_close(shared["state"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert alone["losses"][-1] < 0.9 * alone["losses"][0]


def test_what_the_processes_tell_each_other(stepped):
    alone, first, second = stepped
    assert (alone["shared"], first["shared"], second["shared"]) == ([0, 1, 2, 3, 4], [0, 1, 2], [3, 4, 0])
    for found in stepped:
        assert torch.equal(found["rows"], torch.arange(5.0).unsqueeze(1))
        assert found["from main"] == "of 0"
    assert alone["anywhere"] == [True, False, False]
    assert first["anywhere"] == second["anywhere"] == [True, True, False]
