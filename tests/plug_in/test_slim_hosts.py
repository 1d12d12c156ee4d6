"""`demo_sdtps.slim` on checkouts of code bases of one modality, as test_hosts.py; the rows of docs/slim.md are written too."""

import pytest
import torch
from hosts import FIGURES, ONE_MODALITY
from test_hosts import COMMAND, measure, pytestmark  # noqa: F401
from tiny import ROOT

from benchmarks.rows import Row, conditions
from demo_sdtps.runtime.files import write_json


@pytest.fixture(scope="module")
def rows():
    actual = []
    yield actual
    if FIGURES:
        record = conditions(torch.device("cpu"), False) | {"command": COMMAND}
        parts = {"slim_hosts": [row._asdict() for row in actual]}
        write_json(ROOT / "docs" / "slim_hosts.json", record | {"parts": parts})


@pytest.mark.parametrize("name", ONE_MODALITY)
def test_a_code_base_is_found_by_itself(name, rows, tmp_path):
    """Without a path of its blocks; all kept, and taken off again, it is the model to the last bit."""
    actual = measure(name, tmp_path)
    assert actual["keep_all"] == actual["unslimmed"] == 0 < actual["slimmed"]
    assert actual["training"]["finite"] and actual["training"]["gradients"] > 50
    before, after = (actual["macs"][what] / 1e9 for what in ("before", "after"))
    rows.append(Row(f"{name}: operations", before, after, "G", before / after))
    assert before > 2.5 * after
    before, after = actual["images_per_second"].values()
    rows.append(Row("… images per second", before, after, "", after / before))
