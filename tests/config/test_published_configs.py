"""The configurations of the data sets, beside one another and the published ones."""

import csv
from ast import literal_eval

import pytest
import yaml
from commands import ROOT

from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import READERS

MODULES = {"MODEL.HDM", "MODEL.ATM", "MODEL.USE_SDTPS"}
CONFIGS = sorted(path for path in (ROOT / "configs").glob("*/*.yml") if path.parent.name != "SEPS")


def flatten_config(path):
    """Every key of a configuration, by its full name."""
    sections = yaml.safe_load(load_cfg(path).dump())
    return {
        f"{section}.{key}": value
        for section, keys in sections.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    }


TINY = "DeMo_SDTPS_tiny"


def test_the_tiny_configuration_is_that_of_synthetic_images_on_rgbnt201():
    tiny, whole = (
        flatten_config(ROOT / "configs" / name)
        for name in (f"RGBNT201/{TINY}.yml", "Synthetic/DeMo_SDTPS.yml")
    )
    assert {key: tiny[key] for key in tiny if tiny[key] != whole[key]} == {
        "DATASETS.NAMES": "RGBNT201",
        "DATASETS.ROOT_DIR": "./data",
    }


@pytest.mark.parametrize("folder", READERS)
def test_configurations_of_a_data_set_differ_in_their_modules_alone(folder):
    kinds = {path.stem for path in CONFIGS if path.parent.name == folder} - {TINY}
    slim, both, fine = "DeMo_Slim", "DeMo_with_SDTPS", "DeMo_Slim_Fine"
    finer = {fine} if folder in ("RGBNT201", "Synthetic") else set()  # persons
    assert kinds == {"Baseline", "DeMo", "DeMo_SDTPS", both, slim, *finer}
    actual = {
        kind: flatten_config(ROOT / "configs" / folder / f"{kind}.yml") for kind in sorted(kinds)
    }
    assert {values["DATASETS.NAMES"] for values in actual.values()} == {folder}
    on = {kind: {key for key in MODULES if values[key]} for kind, values in actual.items()}
    fusion = {"MODEL.HDM", "MODEL.ATM"}
    assert on == {
        "Baseline": set(),
        "DeMo": fusion,
        "DeMo_SDTPS": {"MODEL.USE_SDTPS"},
        both: fusion | {"MODEL.USE_SDTPS"},
        **dict.fromkeys({slim, *finer}, fusion),
    }
    apart = {"MODEL.SDTPS_LOSS_WEIGHT": 0.1, "MODEL.SDTPS_FEEDS_HDM": False}
    assert {key: actual[both][key] for key in apart} == apart
    slimming = {key for key in actual[slim] if key.startswith("MODEL.SLIM_")}
    # each synthetic one has the learning rate that was chosen for it
    tuned = {"MODEL.HEAD", "SOLVER.BASE_LR"} if folder == "Synthetic" else set()
    differing = dict.fromkeys(kinds, MODULES | tuned)
    differing[both] = differing[both] | {*apart}
    differing[slim] = differing[slim] | slimming | {"INPUT.JOINT_AUGMENTATION", "INPUT.RE_PROB"}
    larger = {"INPUT.SIZE_TRAIN", "INPUT.SIZE_TEST"}
    assert all(
        [4 * side for side in actual[kind][key]] == [5 * side for side in actual[slim][key]]
        for kind in finer
        for key in larger
    )
    differing[fine] = differing[slim] | larger
    baseline = actual["Baseline"]
    for kind, values in actual.items():
        assert {key for key in values if values[key] != baseline[key]} <= differing[kind]


@pytest.mark.parametrize("name", ["RGBNT201", "RGBNT100", "MSVR310"])
def test_demo_is_configured_as_published(name):
    with open(ROOT / "tests" / "golden" / "config_keys.tsv", encoding="utf-8") as table:
        rows = list(
            csv.DictReader((line for line in table if not line.startswith("#")), delimiter="\t")
        )
    ours = flatten_config(ROOT / "configs" / name / "DeMo.yml")
    differ = {
        row["key"]
        for row in rows
        if row["key"] in ours and ours[row["key"]] != literal_eval(row[name] or row["default"])
    }
    # Weights and machine are the user's; 'None' and 'nothing' both say complete triplets; every epoch is saved.
    assert differ <= {
        "MODEL.PRETRAIN_PATH_T",
        "MODEL.DEVICE",
        "DATALOADER.NUM_WORKERS",
        "TEST.MISS",
        "SOLVER.CHECKPOINT_PERIOD",
    }
    assert ours["TEST.MISS"] in ("None", "nothing") and len(rows) > 70


@pytest.mark.parametrize("kind", ["Baseline", "DeMo", "DeMo_SDTPS", "DeMo_with_SDTPS"])
def test_wmveid863_takes_the_values_of_msvr310(kind):
    ours, theirs = (
        flatten_config(ROOT / "configs" / name / f"{kind}.yml") for name in ("WMVeID863", "MSVR310")
    )
    assert ours == theirs | {"DATASETS.NAMES": "WMVeID863"}
