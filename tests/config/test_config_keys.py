"""Every configuration key, DeMo's and ours, does something that one can see, or is refused with a reason."""

import csv
from itertools import combinations
from pathlib import Path

import pytest
from effects import EFFECTS
from effects.base import configuration, write_ground

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


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The ground of all effects."""
    folder = tmp_path_factory.mktemp("keys")
    write_ground(folder)
    return folder


def test_every_key_is_in_one_of_the_two_tables_and_nothing_else_is():
    """A new key belongs into tests/helpers/effects, or, where it is accepted at its default alone, into REFUSED."""
    assert EFFECTS.keys() ^ REFUSED.keys() == SCHEMA.keys() and not EFFECTS.keys() & REFUSED.keys()
    assert SCHEMA.keys() >= set(demos_keys()) and len(set(demos_keys())) > 70


@pytest.mark.parametrize("name", EFFECTS)
def test_a_key_does_what_it_says(name, root):
    effect = EFFECTS[name]
    found = {value: effect.observe(configuration(root, name, value)) for value in effect.expected}
    for value, expected in effect.expected.items():
        assert found[value] == expected, value
    assert any(found[one] != found[other] for one, other in combinations(found, 2))


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


@pytest.mark.parametrize(
    "name",
    [name for name, key in SCHEMA.items() if isinstance(key.allowed, tuple) and name in EFFECTS],
)
def test_up_to_three_choices_are_all_tried(name):
    tried, allowed = set(EFFECTS[name].expected), {str(choice) for choice in SCHEMA[name].allowed}
    assert tried <= allowed and len(tried) >= min(3, len(allowed)) > 1
