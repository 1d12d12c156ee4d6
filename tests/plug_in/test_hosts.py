"""The plug-in on checkouts of other code bases, HOSTS/<name of hosts.HOSTS>: HOSTS=<folder> make test-hosts. Packages (einops,
ftfy, pandas, PyWavelets, regex, scikit-learn, seaborn) may be on PYTHONPATH; HOSTS_JSON=docs/hosts.json writes the figures."""

import json
import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hosts import FIGURES, FOLDER, HOSTS, importing_from
from tiny import ROOT

from benchmarks.rows import conditions
from demo_sdtps.plug_in.hosts import HOSTS as KNOWN
from demo_sdtps.runtime.files import write_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="HOSTS names no folder of checkouts of other code bases"),
]
COMMAND = "HOSTS=… HOSTS_JSON=docs/hosts.json make test-hosts"


def find_checkout(name):
    """Path of a checkout; the test is skipped without it."""
    checkout = Path(FOLDER).resolve() / name
    if not checkout.is_dir():
        pytest.skip(f"there is no {checkout}")
    return checkout


def measure(name, tmp_path, host=None):
    """What tests/helpers/hosts.py writes, in a process of its own."""
    out, checkout = tmp_path / "figures.json", find_checkout(host or name)
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "helpers" / "hosts.py", name, out],
        env=importing_from(checkout, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def figures():
    """What was measured, by host; written at the end."""
    actual = {}
    yield actual
    if FIGURES:
        before = json.loads((ROOT / FIGURES).read_text())["hosts"]
        rows = list(({row["host"]: row for row in before} | actual).values())
        record = conditions(torch.device("cpu"), False) | {"command": COMMAND, "hosts": rows}
        write_json(ROOT / FIGURES, record)


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_slimmed_and_with_sdtps(name, figures, tmp_path):
    """All kept is the host to the last bit, and so is the model that unslim gives back; half kept and half of that once more
    takes less than 60 % of the operations, and a training step is finite."""
    actual = figures[name] = measure(name, tmp_path)
    print(json.dumps(actual))
    host = next(host for host in KNOWN.values() if host.name == name)
    if host.unslimmed:
        assert host.unslimmed in actual["refused"]
    else:
        assert actual["keep_all"] == actual["unslimmed"] == 0 < actual["slimmed"]
        assert (
            actual["patches"] == [64, 32]
            and actual["training"]["finite"]
            and actual["training"]["gradients"] > 50
        )
        assert actual["macs"]["after"] < 0.6 * actual["macs"]["before"]
    if host.backbone:
        before, after = actual["sdtps"]["width"]
        assert (
            after == before + 3 * 512
            and actual["sdtps"]["training"]["finite"]
            and actual["sdtps"]["gradient"] > 0
        )
    else:
        assert (
            f"the training loop of {name} reads outputs by fixed places"
            in actual["sdtps"]["refused"]
        )


CHECKOUT = os.path.join(os.path.abspath(FOLDER), "DeMo")
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
    find_checkout("DeMo")
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


def test_features_are_those_of_our_model(tmp_path):
    """A state dict of the patched model, loaded here and by load_param: patterns 1, 2, 3 of batches of 2 and 3."""
    for setting, actual in measure("ours", tmp_path, "DeMo").items():
        assert actual["ours"] < 1e-6 and actual["copy"] == 0 and actual["finite"], setting
        if not setting.startswith("slimmed"):
            assert actual["pair"] == [[3, 171], [3, 1536 if "CLIP" in setting else 2304]]


@pytest.mark.parametrize("modules", [[], OFF])
def test_demos_own_loop_and_evaluation(python, tiny_root, tmp_path, modules):
    """Six steps, the three patterns and a checkpoint of DeMo's own script."""
    folders = f"--config_file {CHECKOUT}/configs/RGBNT201/DeMo.yml DATASETS.ROOT_DIR {tiny_root}"
    words = [*folders.split(), "OUTPUT_DIR", tmp_path / "run", *SMALL, *RUN, *modules]
    run = partial(python, ROOT / "tests" / "helpers" / "hosts.py")
    trained = run("train_net.py", *words)
    losses = [float(loss) for loss in re.findall(r"Iteration\[\d+/\d+\] Loss: ([\d.]+)", trained)]
    assert len(losses) >= 5 and all(loss < 100 for loss in losses)
    assert all(
        trained.count(f"Current is the {name} feature testing!") == 1
        for name in ("ori", "moe", "[moe,ori]")
    )
    assert (tmp_path / "run" / "DeMobest.pth").is_file()
    print(losses)
