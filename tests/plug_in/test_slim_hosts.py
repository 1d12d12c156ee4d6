"""`demo_sdtps.slim` on checkouts of code bases of one modality: HOSTS=<folder of checkouts> make test-hosts (test_hosts.py)

Each is a folder HOSTS/<name>. Where HOSTS_JSON is set, the rows of docs/slim.md are written.
"""

import json
import subprocess
import sys

import pytest
import torch
from hosts import FIGURES, importing_from
from slim_checkouts import MODELS
from test_hosts import checkout_of, pytestmark  # noqa: F401
from tiny import ROOT

from benchmarks.rows import conditions
from demo_sdtps.reports.rows import Row
from demo_sdtps.runtime.files import write_json

COMMAND = "HOSTS=… HOSTS_JSON=docs/hosts.json make test-hosts"


@pytest.fixture(scope="module")
def rows():
    """Of the table; written at the end."""
    actual = []
    yield actual
    if FIGURES:
        parts = {"command": COMMAND, "parts": {"slim_hosts": [row._asdict() for row in actual]}}
        write_json(
            ROOT / "docs" / "slim_hosts.json", conditions(torch.device("cpu"), False) | parts
        )


@pytest.mark.parametrize("name", MODELS)
def test_a_code_base_is_found_by_itself(name, rows, tmp_path):
    """Without a path of its blocks; all kept, and taken off again, it is the model to the last bit."""
    out, checkout = tmp_path / "figures.json", checkout_of(name.partition(",")[0])
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "helpers" / "slim_checkouts.py", name, out],
        env=importing_from(checkout, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["keep_all"] == figures["unslimmed"] == 0 < figures["slimmed"]
    assert figures["finite"]
    macs, speeds = figures["macs"], figures["images_per_second"]
    rows.append(
        Row(f"{name}: operations", *(count / 1e9 for count in macs), "G", macs[0] / macs[1])
    )
    rows.append(Row("… images per second", *speeds, "", speeds[1] / speeds[0]))
    assert rows[-2].ratio > 2.5
