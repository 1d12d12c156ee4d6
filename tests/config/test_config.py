"""The configuration: DeMo's keys and files, what overrides what."""

import ast
import csv
from ast import literal_eval
from pathlib import Path

import pytest
import yaml
from config_files import write

from demo_sdtps.config import get_cfg, load_cfg
from demo_sdtps.config.common import SDTPS_ARGUMENTS
from demo_sdtps.config.keys import KEYS
from demo_sdtps.config.left import LEFT
from demo_sdtps.config.load import DEMO_SCHEMA, flatten
from seps.schema import SEPS_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
OTHER_DEFAULTS = {
    *("DATALOADER.NUM_WORKERS", "MODEL.DEVICE", "MODEL.PRETRAIN_PATH_T", "OUTPUT_DIR"),
    "SOLVER.CHECKPOINT_PERIOD",  # a run resumes at the end of the last epoch
}
PUBLISHED = ("RGBNT201", "RGBNT100", "MSVR310")
"""Data sets that DeMo has a published file for: columns of the table."""

with open(ROOT / "tests" / "golden" / "config_keys.tsv", encoding="utf-8") as table:
    DEMO_KEYS = list(
        csv.DictReader((line for line in table if not line.startswith("#")), delimiter="\t")
    )


def in_demos_style(name, value):
    """One value as DeMo's files write it."""
    if name in ("MODEL.DEVICE_ID", "DATASETS.NAMES"):
        return f"('{value}')"
    if name.startswith("SOLVER.WEIGHT_DECAY"):
        return "1e-4"  # a text to YAML, which wants 1.0e-4
    if isinstance(value, str):
        return f'"{value}"'
    return f"[ {', '.join(map(str, value))} ]" if isinstance(value, list) else str(value)


def demo_file(dataset, every_key):
    """DeMo's file for a data set as YAML in its style, and the values that it means.

    It states what differs from DeMo's defaults, or, with `every_key`, all of its keys.
    """
    values, sections = {"OUTPUT_DIR": f"../{dataset}"}, {}
    for row in DEMO_KEYS:
        name = row["key"]
        if "." in name and (every_key or row[dataset]):
            values[name] = literal_eval(row[dataset] or row["default"])
            section, leaf = name.split(".")
            sections.setdefault(section, []).append(
                f"  {leaf}: {in_demos_style(name, values[name])}"
            )
    text = "\n".join(f"{section}:\n" + "\n".join(lines) for section, lines in sections.items())
    return text + f"\nOUTPUT_DIR: '../{dataset}'\n", values


# Keys and defaults


def test_demos_keys_have_demos_defaults():
    defaults = flatten(get_cfg()) | {name: key.default for name, key in LEFT.items()}
    for row in DEMO_KEYS:
        ours, expected = defaults[row["key"]], literal_eval(row["default"])
        if row["key"] not in OTHER_DEFAULTS:
            assert ours == expected and isinstance(ours, type(expected) | float), row["key"]


def test_the_defaults_of_seps_are_the_originals():
    cfg = load_cfg(None, (), SEPS_SCHEMA)
    solver = cfg.SOLVER
    assert cfg.MODEL.EMBED_SIZE == 512 and solver.STEPS == (9, 15, 20, 25) and solver.GAMMA == 0.3
    assert (solver.IMS_PER_BATCH, solver.BASE_LR, solver.MAX_EPOCHS) == (128, 2e-4, 30)
    assert (solver.GRAD_CLIP, solver.ALL_NEGATIVES_EPOCHS) == (2.0, 1)


def test_every_key_allows_its_default():
    assert len({key.name for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert load_cfg(None, [key.name, key.default]) == load_cfg(), key.name


def test_every_key_is_read():
    """A new key that no module reads does nothing. Tests of the rooms show what the others do."""
    files = [*(ROOT / "demo_sdtps").rglob("*.py"), *(ROOT / "vit_slim").rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant)}  # cfg.get("NAME")
    read |= {f"SDTPS_{name.upper()}" for name in SDTPS_ARGUMENTS}
    assert not [key.name for key in KEYS if key.name.split(".")[-1] not in read]


# Files


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "configs").rglob("*.yml")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_every_file_in_configs_loads(path):
    cfg = load_cfg(path, (), SEPS_SCHEMA if path.parent.name == "SEPS" else DEMO_SCHEMA)
    stated, values = yaml.safe_load(path.read_text(encoding="utf-8")), flatten(cfg)
    assert (stated.pop("_BASE_", None) is None) == (
        path.parent.name == "SEPS" or (path.stem == "Baseline" and path.parent.name != "WMVeID863")
    )
    for name, value in flatten(stated).items():
        assert values[name] == (tuple(value) if isinstance(values[name], tuple) else value)
    assert Path(cfg.OUTPUT_DIR) == Path("runs") / path.parent.name / path.stem
    # Published weights for real data, random ones for synthetic data and where nothing is downloaded.
    is_random = path.parent.name == "Synthetic" or path.stem in ("shapes", "DeMo_SDTPS_tiny")
    assert ("none" if is_random else "hub") == cfg.MODEL.PRETRAIN_PATH_T


@pytest.mark.parametrize("every_key", [False, True], ids=["what differs", "every key"])
@pytest.mark.parametrize("dataset", PUBLISHED)
def test_demos_own_files_load(tmp_path, dataset, every_key):
    text, values = demo_file(dataset, every_key)
    assert len(values) == 1 + sum(
        every_key or bool(row[dataset]) for row in DEMO_KEYS if "." in row["key"]
    )
    cfg = load_cfg(write(tmp_path, text))
    kept = {name: value for name, value in values.items() if name not in LEFT}
    assert flatten(cfg) == flatten(get_cfg()) | kept
    assert cfg.MODEL.HDM and cfg.MODEL.ATM and dataset == cfg.DATASETS.NAMES


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("MODEL: {DEVICE_ID: ('0')}", "MODEL.DEVICE_ID", "0"),
        ("SOLVER: {WEIGHT_DECAY: 1e-3}", "SOLVER.WEIGHT_DECAY", 0.001),
        ("SOLVER: {BIAS_LR_FACTOR: 3}", "SOLVER.BIAS_LR_FACTOR", 3.0),
        ("MODEL: {STRIDE_SIZE: '(12, 12)'}", "MODEL.STRIDE_SIZE", [12, 12]),
        ("TEST: {MISS: None}", "TEST.MISS", "None"),
        ("TEST: {MISS: n}", "TEST.MISS", "n"),
        ("MODEL: {IF_LABELSMOOTH: off}", "MODEL.IF_LABELSMOOTH", "off"),
        ("TEST: {FEAT_NORM: yes}", "TEST.FEAT_NORM", "yes"),
        ("RESUME: 'True'", "RESUME", "yes"),
        ("MODEL: {USE_SDTPS: yes}", "MODEL.USE_SDTPS", True),
        ("SOLVER.MAX_EPOCHS: 3", "SOLVER.MAX_EPOCHS", 3),
        ("\ufeffMODEL:\r\n  HEAD: 4\r\n", "MODEL.HEAD", 4),  # as an editor on Windows writes it
        # all of a section commented out
        ("MODEL:\n  # HEAD: 2\nSOLVER:\n  SEED: 3", "SOLVER.SEED", 3),
    ],
)
def test_a_value_takes_the_type_of_its_key(tmp_path, text, name, expected):
    actual = flatten(load_cfg(write(tmp_path, text)))[name]
    assert actual == expected and type(actual) is type(expected)


def test_a_file_starts_from_its_base(tmp_path):
    """Relative to its folder, however both write a key; a section whose keys are all commented out changes none."""
    base = write(tmp_path, "MODEL: {HEAD: 4}\nSOLVER: {SEED: 3}\nSOLVER.MAX_EPOCHS: 5\n")
    (tmp_path / "some" / "next.yml").write_text(f"_BASE_: {base.name}\nSOLVER:\n  SEED: 7\n")
    last = tmp_path / "last.yml"
    last.write_text("_BASE_: some/next.yml\nMODEL:\n  # HEAD: 2\nSOLVER: {MAX_EPOCHS: 9}\n")
    cfg = load_cfg(last)
    assert (cfg.MODEL.HEAD, cfg.SOLVER.SEED, cfg.SOLVER.MAX_EPOCHS) == (4, 7, 9)
    assert f"runs/{tmp_path.name}/last" == cfg.OUTPUT_DIR


@pytest.mark.parametrize(
    "opts",
    [
        ["SOLVER.MAX_EPOCHS", "7", "SOLVER.MAX_EPOCHS", "9"],
        ["SOLVER.MAX_EPOCHS=9"],
        ["SOLVER.MAX_EPOCHS=7", "SOLVER.MAX_EPOCHS", 9],
    ],
    ids=str,
)
def test_the_command_line_beats_the_file_and_the_last_word_wins(tmp_path, opts):
    cfg = load_cfg(
        write(tmp_path, "SOLVER: {MAX_EPOCHS: 3, SEED: 5}"), [*opts, "OUTPUT_DIR=runs/lr=0.1"]
    )
    assert (cfg.SOLVER.MAX_EPOCHS, cfg.SOLVER.SEED, cfg.SOLVER.EVAL_PERIOD) == (9, 5, 1)
    assert cfg.OUTPUT_DIR == "runs/lr=0.1"


def test_a_dumped_configuration_loads_back_equal(tmp_path):
    opts = [
        *("MODEL.IF_LABELSMOOTH=off", "TEST.FEAT_NORM=no", "TEST.MISS=nt", "MODEL.DEVICE_ID=3"),
        *("SOLVER.WEIGHT_DECAY=1e-5", "OUTPUT_DIR=a b/ü"),
    ]
    cfg = load_cfg(ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml", opts)
    assert load_cfg(write(tmp_path, cfg.dump())) == cfg
    opts = ["SOLVER.STEPS=(1, 2)", "MODEL.TEXT_TOWER=a b/ü", "OUTPUT_DIR=x"]
    seps = load_cfg(None, opts, SEPS_SCHEMA)
    assert load_cfg(write(tmp_path, seps.dump()), (), SEPS_SCHEMA) == seps


def test_output_dir_follows_the_file_unless_it_is_given(tmp_path, monkeypatch):
    path, expected = write(tmp_path, ""), get_cfg()
    expected.OUTPUT_DIR = "runs/some/run"
    assert load_cfg(path) == expected
    assert load_cfg(path, ["OUTPUT_DIR", "elsewhere"]).OUTPUT_DIR == "elsewhere"
    monkeypatch.chdir(path.parent)  # a name without folder still has one
    assert load_cfg("run.yml").OUTPUT_DIR == "runs/some/run"
