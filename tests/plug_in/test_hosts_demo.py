"""The plug-in on a checkout of DeMo, HOSTS/DeMo (test_hosts.py): features of this project's model, DeMo's own loop."""

import json
import os
import re
import shlex
import subprocess
import sys
from functools import partial

import pytest
from hosts import FOLDER, importing_from
from tiny import ROOT

HELPERS, CHECKOUT = ROOT / "tests" / "helpers", os.path.join(os.path.abspath(FOLDER), "DeMo")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="HOSTS names no folder of checkouts of other code bases"),
    pytest.mark.skipif(not os.path.isdir(CHECKOUT), reason="there is no HOSTS/DeMo"),
]
SMALL = shlex.split(
    "INPUT.SIZE_TRAIN '[64, 32]' INPUT.SIZE_TEST '[64, 32]' DATALOADER.NUM_WORKERS 0"
)
RUN = shlex.split(
    "SOLVER.MAX_EPOCHS 1 SOLVER.LOG_PERIOD 1 SOLVER.IMS_PER_BATCH 8 "
    "DATALOADER.NUM_INSTANCE 4 TEST.IMS_PER_BATCH 16 MODEL.USE_SDTPS True"
)
OFF = ["MODEL.HDM", "False", "MODEL.ATM", "False"]


@pytest.fixture
def python(tmp_path):
    """Run a program in the checkout → what it prints."""
    environment = importing_from(CHECKOUT, tmp_path)

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *map(str, words)],
            cwd=CHECKOUT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_features_are_those_of_our_model(python, tmp_path):
    """A state dict of the patched model, loaded here and by load_param: patterns 1, 2, 3 of batches of 2 and 3."""
    python(HELPERS / "host_demo.py", CHECKOUT, tmp_path)
    text = (tmp_path / "figures.json").read_text()
    print(text)
    for setting, actual in json.loads(text).items():
        assert actual["ours"] < 1e-6 and actual["copy"] == 0 and actual["finite"], setting
        if not setting.startswith("slimmed"):
            assert actual["pair"] == [[3, 171], [3, 1536 if "CLIP" in setting else 2304]]


@pytest.mark.parametrize("modules", [[], OFF])
def test_demos_own_loop_and_evaluation(python, tiny_root, tmp_path, modules):
    """Six steps, the three patterns and a checkpoint of DeMo's own script."""
    folders = f"--config_file {CHECKOUT}/configs/RGBNT201/DeMo.yml DATASETS.ROOT_DIR {tiny_root}"
    words = [*folders.split(), "OUTPUT_DIR", tmp_path / "run", *SMALL, *RUN, *modules]
    run = partial(python, HELPERS / "hosts.py")
    trained = run("train_net.py", *words)
    losses = [float(loss) for loss in re.findall(r"Iteration\[\d+/\d+\] Loss: ([\d.]+)", trained)]
    assert len(losses) >= 5 and all(loss < 100 for loss in losses)
    assert all(
        trained.count(f"Current is the {name} feature testing!") == 1
        for name in ("ori", "moe", "[moe,ori]")
    )
    assert (tmp_path / "run" / "DeMobest.pth").is_file()
    print(losses)
