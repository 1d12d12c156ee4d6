"""The plug-in on checkouts of the code bases that it knows: HOSTS=<folder of checkouts> make test-hosts

Each is a folder HOSTS/<name of hosts.HOSTS>; their packages (einops, ftfy, pandas, PyWavelets, regex, scikit-learn,
seaborn) may be on PYTHONPATH. With HOSTS_JSON=docs/hosts.json the figures of docs/plug_in.md are written there.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hosts import FIGURES, FOLDER, importing_from
from tiny import ROOT

from benchmarks.rows import conditions
from demo_sdtps.plug_in.hosts import HOSTS as KNOWN
from demo_sdtps.runtime.files import write_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="HOSTS names no folder of checkouts of other code bases"),
]
NAMES = [host.name for host in KNOWN.values()]
COMMAND = "HOSTS=… HOSTS_JSON=docs/hosts.json make test-hosts"


def find_checkout(name):
    """Path of a checkout; the test is skipped without it."""
    checkout = Path(FOLDER).resolve() / name
    if not checkout.is_dir():
        pytest.skip(f"there is no {checkout}")
    return checkout


def measure(name, tmp_path):
    """What tests/helpers/hosts.py writes, in a process of its own."""
    out, checkout = tmp_path / "figures.json", find_checkout(name.partition(",")[0])
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
        write_json(
            ROOT / FIGURES,
            conditions(torch.device("cpu"), False)
            | {"command": COMMAND, "hosts": list(actual.values())},
        )


@pytest.mark.parametrize("name", NAMES)
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
