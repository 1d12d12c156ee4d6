"""Every configuration key, DeMo's and ours, is read by the code, or is refused with a reason."""

import ast
import csv
from pathlib import Path

import pytest
from commands import ROOT

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.keys import KEYS

REFUSED = {
    "MODEL.NAME": ("ResNet50", "'DeMo'"),
    "MODEL.SIE_VIEW": ("True", "no view"),
    "MODEL.PROMPT": ("True", "MambaPro"),
    "MODEL.ADAPTER": ("True", "MambaPro"),
    "MODEL.NECK": ("no", "no other neck"),
    "MODEL.ID_LOSS_TYPE": ("arcface", "linear"),
    "MODEL.IF_WITH_CENTER": ("yes", "METRIC_LOSS_TYPE 'triplet' has no center loss"),
    **{
        f"SOLVER.{name}": (value, "a cosine with WARMUP_ITERS")
        for name, value in {
            "STEPS": "(30, 60)",
            "GAMMA": "0.2",
            "WARMUP_FACTOR": "0.1",
            "WARMUP_METHOD": "constant",
        }.items()
    },
    **{
        f"SOLVER.{name}": (value, "no cluster, cosine or range loss")
        for name, value in {
            "CLUSTER_MARGIN": "0.5",
            "COSINE_MARGIN": "0.3",
            "COSINE_SCALE": "60",
            "RANGE_K": "3",
            "RANGE_MARGIN": "0.5",
            "RANGE_ALPHA": "1",
            "RANGE_BETA": "2",
            "RANGE_LOSS_WEIGHT": "2",
        }.items()
    },
}
"""By key: a value other than the default, and what the refusal says of the reason."""

SCHEMA = {key.name: key for key in KEYS}
TABLE = Path(__file__).parents[1] / "golden" / "config_keys.tsv"


def demos_keys():
    with open(TABLE, encoding="utf-8") as table:
        return [
            row["key"]
            for row in csv.DictReader(
                (line for line in table if not line.startswith("#")), delimiter="\t"
            )
        ]


def test_every_key_is_refused_or_read():
    """A new key that no module reads does nothing. Tests of the rooms show what the others do."""
    read = {
        node.attr
        for path in (ROOT / "demo_sdtps").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert not [name for name in SCHEMA.keys() - REFUSED.keys() if name.split(".")[-1] not in read]
    assert SCHEMA.keys() >= set(demos_keys()) and len(set(demos_keys())) > 70


@pytest.mark.parametrize("name", REFUSED)
def test_a_key_is_refused_with_a_reason(name, tmp_path):
    value, reason = REFUSED[name]
    section, leaf = name.split(".")
    path = tmp_path / "run.yml"
    path.write_text(f"{section}:\n  {leaf}: '{value}'\n")
    for arguments in ((None, [name, value]), (path,)):
        with pytest.raises(UserError) as raised:
            load_cfg(*arguments)
        said = str(raised.value)
        assert (
            said.startswith(name)
            and value in said
            and reason in said
            and said.endswith(".")
            and "\n" not in said
        )
    default = SCHEMA[name].default
    assert repr(default) in said or f"to {default!r}" in said or "to False" in said
    load_cfg(None, [name, str(default)])  # the way out
