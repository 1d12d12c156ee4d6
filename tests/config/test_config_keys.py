"""Every configuration key, DeMo's and ours, is read by the code, or is refused with a reason."""

import ast

import pytest
from commands import ROOT
from config_files import error

from demo_sdtps.config import load_cfg
from demo_sdtps.config.keys import KEYS, UNUSED_KEYS
from demo_sdtps.config.load import DEMO_SCHEMA

REFUSED = {
    "MODEL.NAME": ("ResNet50", "'DeMo'"),
    "MODEL.SIE_VIEW": ("True", "no view"),
    "MODEL.PROMPT": ("True", "MambaPro"),
    "MODEL.ADAPTER": ("True", "MambaPro"),
    "MODEL.NECK": ("no", "no other neck"),
    "MODEL.ID_LOSS_TYPE": ("arcface", "linear"),
    "MODEL.IF_WITH_CENTER": ("yes", "METRIC_LOSS_TYPE 'triplet' has no center loss"),
    "SOLVER.STEPS": ("(30, 60)", "a cosine with WARMUP_ITERS"),
    "SOLVER.RANGE_K": ("3", "no cluster, cosine or range loss"),
}
"""By key: a value other than the default, and what the refusal says of the reason."""


def test_every_key_is_refused_or_read():
    """A new key that no module reads does nothing. Tests of the rooms show what the others do."""
    trees = (ast.parse(path.read_text("utf-8")) for path in (ROOT / "demo_sdtps").rglob("*.py"))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant)}  # cfg.get("NAME")
    unused = UNUSED_KEYS.keys() | REFUSED.keys()
    names = {key.name for key in KEYS}
    assert unused < names
    assert not [name for name in names - unused if name.split(".")[-1] not in read]


@pytest.mark.parametrize("name", REFUSED)
def test_a_key_is_refused_with_a_reason(name):
    value, reason = REFUSED[name]
    message = error(None, [name, value])
    assert (
        message.startswith(name)
        and value in message
        and reason in message
        and message.endswith(".")
    )
    default = DEMO_SCHEMA.by_name[name].default
    assert repr(default) in message or f"to {default!r}" in message
    load_cfg(None, [name, str(default)])  # the way out
