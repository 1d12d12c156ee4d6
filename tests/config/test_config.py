"""The configuration: DeMo's keys and files, the published ones, what overrides what, and mistakes, each one sentence."""

import ast
import csv
from ast import literal_eval
from pathlib import Path

import pytest
import yaml
from commands import ROOT

from demo_sdtps.config import UserError, get_cfg, load_cfg
from demo_sdtps.config.common import SDTPS_SETTINGS
from demo_sdtps.config.keys import DEMO_SCHEMA, KEYS
from demo_sdtps.config.left import LEFT
from demo_sdtps.config.load import StoredText, flatten
from demo_sdtps.datasets import READERS
from seps.schema import SEPS_SCHEMA

CONFIGS = ROOT / "configs"
OTHER_DEFAULTS = {
    *("DATALOADER.NUM_WORKERS", "MODEL.DEVICE", "MODEL.PRETRAIN_PATH_T", "OUTPUT_DIR"),
    "SOLVER.CHECKPOINT_PERIOD",  # a run resumes at the end of the last epoch
}
"""Keys that depend on the machine, and this one."""
PUBLISHED = ("RGBNT201", "RGBNT100", "MSVR310")
"""Data sets that DeMo has a published file for: columns of the table."""

with open(ROOT / "tests" / "golden" / "config_keys.tsv", encoding="utf-8") as table:
    DEMO_KEYS = list(
        csv.DictReader((line for line in table if not line.startswith("#")), delimiter="\t")
    )


def write(folder, text):
    path = folder / "some" / "run.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def error(*arguments):
    """The sentence that loading raises."""
    with pytest.raises(UserError) as raised:
        load_cfg(*arguments)
    message = str(raised.value)
    assert "\n" not in message
    return message


def in_demos_style(name, value):
    """One value as DeMo's files write it."""
    if name in ("MODEL.DEVICE_ID", "DATASETS.NAMES"):
        return f"('{value}')"
    if name.startswith("SOLVER.WEIGHT_DECAY"):
        return "1e-4"  # a text to YAML, which wants 1.0e-4
    if isinstance(value, str):
        return f'"{value}"'
    return f"[ {', '.join(map(str, value))} ]" if isinstance(value, list) else str(value)


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
    assert len(DEMO_SCHEMA.by_name) == len(KEYS)
    for key in KEYS:
        assert load_cfg(None, [key.name, key.default]) == load_cfg(), key.name


def test_every_key_is_read():
    """A new key that no module reads does nothing. Tests of the rooms show what the others do."""
    files = [*(ROOT / "demo_sdtps").rglob("*.py"), *(ROOT / "vit_slim").rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant)}  # cfg.get("NAME")
    read |= {f"SDTPS_{name.upper()}" for name in SDTPS_SETTINGS}
    assert not [key.name for key in KEYS if key.name.split(".")[-1] not in read]


# Files


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yml")), ids=lambda path: path.stem)
def test_every_file_in_configs_loads(path):
    cfg = load_cfg(path, (), SEPS_SCHEMA if path.parent.name == "SEPS" else DEMO_SCHEMA)
    stated, values = yaml.safe_load(path.read_text(encoding="utf-8")), flatten(cfg)
    stated.pop("_BASE_", None)
    for name, value in flatten(stated).items():
        assert values[name] == (tuple(value) if isinstance(values[name], tuple) else value)
    assert Path(cfg.OUTPUT_DIR) == Path("runs") / path.parent.name / path.stem
    # Published weights for real data, random ones for synthetic data and where nothing is downloaded.
    is_random = path.parent.name == "Synthetic" or path.stem in ("shapes", "DeMo_SDTPS_tiny")
    assert ("none" if is_random else "hub") == cfg.MODEL.PRETRAIN_PATH_T


@pytest.mark.parametrize("folder", READERS)
def test_configurations_of_a_data_set_differ_in_their_modules_alone(folder):
    modules = {"MODEL.HDM", "MODEL.ATM", "MODEL.USE_SDTPS"}
    apart = {"MODEL.SDTPS_LOSS_WEIGHT", "MODEL.SDTPS_FEEDS_HDM"}
    slim = {name for name in DEMO_SCHEMA.by_name if name.startswith("MODEL.SLIM_")}
    slim |= {"MODEL.HDM", "MODEL.ATM", "INPUT.JOINT_AUGMENTATION", "INPUT.RE_PROB"}
    kinds = {
        "DeMo": {"MODEL.HDM", "MODEL.ATM"},
        "DeMo_SDTPS": {"MODEL.USE_SDTPS"},
        "DeMo_with_SDTPS": modules | apart,
        "DeMo_Slim": slim,
    }
    baseline = flatten(load_cfg(f"{folder}/Baseline"))
    assert baseline["DATASETS.NAMES"] == folder and not any(baseline[name] for name in modules)
    for kind, differing in kinds.items():
        values = flatten(load_cfg(f"{folder}/{kind}"))
        actual = {name for name in values if values[name] != baseline[name]} - {"OUTPUT_DIR"}
        # each synthetic one has the learning rate that was chosen for it
        tuned = {"MODEL.HEAD"}
        if folder == "Synthetic":  # its DeMo_Slim is the demo's
            tuned |= {"SOLVER.BASE_LR", "MODEL.SIE_UNKNOWN"}
        assert differing & modules <= actual <= differing | tuned
        assert all(values[name] for name in differing & modules)


@pytest.mark.parametrize("name", PUBLISHED)
def test_demo_is_configured_as_published(name):
    ours = flatten(load_cfg(f"{name}/DeMo"))
    differ = {
        row["key"]
        for row in DEMO_KEYS
        if row["key"] in ours and ours[row["key"]] != literal_eval(row[name] or row["default"])
    }
    # 'None' and 'nothing' both say complete triplets
    assert differ <= {*OTHER_DEFAULTS, "DATASETS.ROOT_DIR", "TEST.MISS"} and len(DEMO_KEYS) > 70
    assert ours["TEST.MISS"] in ("None", "nothing")


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_demos_own_files_load(tmp_path, dataset):
    """With all of its keys in its style."""
    values, sections = {"OUTPUT_DIR": f"../{dataset}"}, {}
    for row in DEMO_KEYS:
        name = row["key"]
        if "." in name:
            values[name] = literal_eval(row[dataset] or row["default"])
            section, leaf = name.split(".")
            line = f"  {leaf}: {in_demos_style(name, values[name])}\n"
            sections[section] = sections.get(section, f"{section}:\n") + line
    cfg = load_cfg(write(tmp_path, "".join(sections.values()) + f"OUTPUT_DIR: '../{dataset}'\n"))
    kept = {name: value for name, value in values.items() if name not in LEFT}
    assert flatten(cfg) == flatten(get_cfg()) | kept
    assert cfg.MODEL.HDM and cfg.MODEL.ATM and dataset == cfg.DATASETS.NAMES


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("MODEL: {DEVICE_ID: ('0')}", "MODEL.DEVICE_ID", "0"),
        ("SOLVER: {WEIGHT_DECAY: 1e-3}", "SOLVER.WEIGHT_DECAY", 0.001),
        ("SOLVER: {BIAS_LR_FACTOR: 3}", "SOLVER.BIAS_LR_FACTOR", 3.0),
        ("INPUT: {PIXEL_MEAN: [0, 0.5, 1]}", "INPUT.PIXEL_MEAN", [0.0, 0.5, 1.0]),
        ("MODEL: {STRIDE_SIZE: '(12, 12)'}", "MODEL.STRIDE_SIZE", [12, 12]),
        ("TEST: {MISS: None}", "TEST.MISS", "None"),
        ("TEST: {MISS: n}", "TEST.MISS", "n"),
        ("MODEL: {IF_LABELSMOOTH: off}", "MODEL.IF_LABELSMOOTH", "off"),
        ("TEST: {FEAT_NORM: yes}", "TEST.FEAT_NORM", "yes"),
        ("MODEL: {USE_SDTPS: yes}", "MODEL.USE_SDTPS", True),
        ("SOLVER.MAX_EPOCHS: 3", "SOLVER.MAX_EPOCHS", 3),
        ("\ufeffMODEL:\r\n  HEAD: 4\r\n", "MODEL.HEAD", 4),  # as an editor on Windows writes it
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


def test_the_command_line_beats_the_file_and_the_last_word_wins(tmp_path):
    path = write(tmp_path, "SOLVER: {MAX_EPOCHS: 3, SEED: 5}")
    opts = ["SOLVER.MAX_EPOCHS", "7", "SOLVER.MAX_EPOCHS=9", "OUTPUT_DIR=runs/lr=0.1"]
    cfg = load_cfg(path, opts)
    assert (cfg.SOLVER.MAX_EPOCHS, cfg.SOLVER.SEED, cfg.SOLVER.EVAL_PERIOD) == (9, 5, 1)
    assert cfg.OUTPUT_DIR == "runs/lr=0.1"


def test_a_dumped_configuration_loads_back_equal(tmp_path):
    opts = [
        *("MODEL.IF_LABELSMOOTH=off", "TEST.FEAT_NORM=no", "TEST.MISS=nt", "MODEL.DEVICE_ID=3"),
        *("SOLVER.WEIGHT_DECAY=1e-5", "OUTPUT_DIR=a b/ü"),
    ]
    cfg = load_cfg("RGBNT201/DeMo_SDTPS", opts)
    assert load_cfg(write(tmp_path, cfg.dump())) == cfg
    opts = ["SOLVER.STEPS=(1, 2)", "MODEL.TEXT_TOWER=a b/ü", "OUTPUT_DIR=x"]
    seps = load_cfg(None, opts, SEPS_SCHEMA)
    assert load_cfg(write(tmp_path, seps.dump()), (), SEPS_SCHEMA) == seps


# Mistakes


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("MODEL.SDTPS_SPARS_RATIO", "MODEL.SDTPS_SPARSE_RATIO"),
        ("solver.max_epochs", "SOLVER.MAX_EPOCHS"),
        ("MAX_EPOCHS", "SOLVER.MAX_EPOCHS"),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest(tmp_path, wrong, right):
    path = write(tmp_path, f"{wrong}: True")
    for message, source in (
        (error(None, [wrong, "True"]), "the command line"),
        (error(path), path),
    ):
        assert repr(wrong) in message and repr(right) in message and str(source) in message


CLIP = "MODEL.TRANSFORMER_TYPE ViT-B-16"
MISTAKES = {
    "a type": ("SOLVER.MAX_EPOCHS ten", "'ten'"),
    "no number": ("SOLVER.BASE_LR nan", "'nan'"),
    "an end of a range": ("MODEL.SDTPS_SPARSE_RATIO 0", "(0, 1]"),
    "an end that is excluded": ("DATASETS.VALIDATION 1", "[0, 1)"),
    "a value of another length": ("INPUT.SIZE_TRAIN [128]", "[128]"),
    "an entry out of a range": ("INPUT.PIXEL_STD [1,1,0]", "greater than 0"),
    "an entry that is no number": ("MODEL.SLIM_KEEP [half]", "shares"),
    "equal blocks": ("MODEL.SLIM_BLOCKS [1,1] MODEL.SLIM_KEEP [0.5,0.5]", "[1, 1]"),
    "modalities in another order": ("MODEL.MODALITIES [TI,RGB]", "['RGB', 'TI']"),
    "a choice": ("SOLVER.OPTIMIZER_NAME adam", "'Adam'"),
    "two sizes": ("INPUT.SIZE_TRAIN [128,64]", "INPUT.SIZE_TEST"),
    "no whole identities": ("SOLVER.IMS_PER_BATCH 100", "NUM_INSTANCE"),
    "one identity a batch": ("SOLVER.IMS_PER_BATCH 16", "NUM_INSTANCE"),
    "a module that needs another": ("MODEL.ATM True", "MODEL.HDM"),
    "noise that is not drawn": ("MODEL.SDTPS_GUMBEL_SELECT True", "MODEL.SDTPS_USE_GUMBEL"),
    "no center loss": ("MODEL.IF_WITH_CENTER yes", "METRIC_LOSS_TYPE"),
    "the backbone's depth": (f"MODEL.DEPTH 8 {CLIP}", "MODEL.DEPTH"),
    "no modality left": ("TEST.MISS r MODEL.MODALITIES [RGB]", "MODEL.MODALITIES"),
    "all cases and one": ("TEST.CROSS_MODAL True TEST.MISS r", "TEST.MISS"),
    "a key without a value": ("SOLVER.SEED=", "None"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_value_is_reported(name):
    words, reason = MISTAKES[name]
    message = error(None, words.split())
    assert words.partition(" ")[0].rstrip("=") in message and reason in message


def test_a_mistake_in_a_configuration_of_seps_is_reported():
    assert "'MODEL.HDM'" in error(None, ["MODEL.HDM", "True"], SEPS_SCHEMA)
    assert "SOLVER.STEPS" in error(None, ["SOLVER.STEPS", "(0,3)"], SEPS_SCHEMA)
    assert load_cfg(None, ["SOLVER.STEPS", "(3,)"], SEPS_SCHEMA).SOLVER.STEPS == (3,)  # not left


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("MODEL:\n  NAME: DeMo\n\tHEAD: 4", "line 3"),
        ("- MODEL\n- SOLVER", "KEY: value"),
        ("MODEL:\n  HEAD: 4\nSOLVER:\n  SEED: 1\nMODEL:\n  HDM: True", "MODEL stands twice"),
        ("MODEL:\n  HDM: True\nMODEL.HDM: False", "MODEL.HDM stands twice"),
        ("OUTPUT_DIR: Läufe".encode("latin-1"), "utf-8"),
        ("_BASE_: none.yml", "none.yml"),
        ("_BASE_: run.yml", "_BASE_"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_read_is_reported(tmp_path, content, reason):
    path = tmp_path / "run.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert str(tmp_path) in (message := error(path)) and reason in message


def test_a_missing_file_is_reported_with_the_nearest_name():
    assert "'RGBNT201/DeMo'" in error("RGBNT20/DeMo")


def test_the_old_default_of_a_key_that_left_is_dropped(tmp_path):
    assert not LEFT.keys() & DEMO_SCHEMA.by_name.keys()
    lines = [f"{name}: {key.default!r}" for name, key in LEFT.items()]
    path = write(tmp_path, "\n".join(["SOLVER.SEED: 5", *lines]))
    cfg = load_cfg(path, [word for name, key in LEFT.items() for word in (name, str(key.default))])
    assert cfg.SOLVER.SEED == 5 and "WANDB" not in cfg.SOLVER and "NAME" not in cfg.MODEL


@pytest.mark.parametrize("name", LEFT)
def test_another_value_of_a_key_that_left_is_refused(tmp_path, name):
    stored = StoredText(tmp_path / "best.pth", f"{name}: 27")
    for message in (error(None, [name, "27"]), error(stored)):
        assert message.startswith(f"{name} in ") and LEFT[name].description in message
