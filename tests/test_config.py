"""The configuration: DeMo's keys and files, what overrides what, and the sentence for every mistake."""
import csv
from ast import literal_eval
from pathlib import Path

import pytest
import yaml

from config import UserError, get_cfg, load_cfg
from config.schema import KEYS

ROOT = Path(__file__).resolve().parent.parent
MACHINE_BOUND = {"DATALOADER.NUM_WORKERS", "MODEL.DEVICE", "MODEL.PRETRAIN_PATH_T", "OUTPUT_DIR"}
PUBLISHED = ("RGBNT201", "RGBNT100", "MSVR310")
"""Data sets that DeMo has a published file for: columns of the table."""

with open(ROOT / "tests" / "golden" / "config_keys.tsv", encoding="utf-8") as table:
    DEMO_KEYS = list(csv.DictReader((line for line in table if not line.startswith("#")), delimiter="\t"))


def value_of(cfg, name):
    for part in name.split("."):
        cfg = cfg[part]
    return cfg


def write(folder, text):
    path = folder / "some" / "run.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


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
            sections.setdefault(section, []).append(f"  {leaf}: {in_demos_style(name, values[name])}")
    text = "\n".join(f"{section}:\n" + "\n".join(lines) for section, lines in sections.items())
    return text + f"\nOUTPUT_DIR: '../{dataset}'\n", values


def error(*arguments):
    """The sentence that loading raises; every one of them is a single line."""
    with pytest.raises(UserError) as raised:
        load_cfg(*arguments)
    message = str(raised.value)
    assert "\n" not in message
    return message


# Keys and defaults


def test_the_table_of_demos_keys_is_whole():
    assert len(DEMO_KEYS) > 70
    assert len({row["key"] for row in DEMO_KEYS}) == len(DEMO_KEYS)


@pytest.mark.parametrize("row", DEMO_KEYS, ids=lambda row: row["key"])
def test_demos_key_has_demos_default(row):
    ours = value_of(get_cfg(), row["key"])  # missing: KeyError
    if row["key"] not in MACHINE_BOUND:
        expected = literal_eval(row["default"])
        assert ours == expected
        assert isinstance(ours, type(expected) | float)


def test_get_cfg_is_fresh_each_time():
    changed = get_cfg()
    changed.INPUT.SIZE_TRAIN.append(3)
    changed.MODEL.NAME = "changed"
    changed.SOLVER.freeze()
    fresh = get_cfg()
    assert fresh.INPUT.SIZE_TRAIN == [256, 128]
    assert fresh.MODEL.NAME == "DeMo"
    assert not fresh.SOLVER.is_frozen()


def test_every_key_is_described_once():
    assert len({key.name for key in KEYS}) == len(KEYS)
    assert [key.name for key in KEYS if len(key.description) < 5 or key.description.endswith(".")] == []


@pytest.mark.parametrize("key", [key for key in KEYS if key.allowed], ids=lambda key: key.name)
def test_a_key_allows_its_own_default(key):
    if callable(key.allowed):
        assert key.allowed(key.default) is True
        assert key.allowed_text
    else:
        assert key.default in key.allowed


# Files

@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_file_in_configs_loads(path):
    cfg = load_cfg(path)
    stated = yaml.safe_load(path.read_text(encoding="utf-8"))
    for section, values in stated.items():
        for leaf, value in values.items():
            assert value_of(cfg, f"{section}.{leaf}") == value
    assert Path(cfg.OUTPUT_DIR) == Path("runs") / path.parent.name / path.stem


def test_there_are_configs_for_both_data_sets_we_read():
    assert {path.parent.name for path in (ROOT / "configs").rglob("*.yml")} >= {"RGBNT201", "Synthetic"}


@pytest.mark.parametrize("every_key", [False, True], ids=["what differs", "every key"])
@pytest.mark.parametrize("dataset", PUBLISHED)
def test_demos_own_files_load(tmp_path, dataset, every_key):
    text, values = demo_file(dataset, every_key)
    assert len(values) == (len(DEMO_KEYS) if every_key else len([row for row in DEMO_KEYS if row[dataset]]) + 1)
    cfg, defaults = load_cfg(write(tmp_path, text)), get_cfg()
    for key in KEYS:
        assert value_of(cfg, key.name) == values.get(key.name, value_of(defaults, key.name)), key.name
    assert cfg.MODEL.HDM and cfg.MODEL.ATM and dataset == cfg.DATASETS.NAMES and cfg.SOLVER.STEPS == (40, 70)


@pytest.mark.parametrize(("text", "name", "expected"), [
    ("MODEL: {DEVICE_ID: ('0')}", "MODEL.DEVICE_ID", "0"),
    ("MODEL: {DEVICE_ID: '1'}", "MODEL.DEVICE_ID", "1"),
    ("DATASETS: {NAMES: ('RGBNT201')}", "DATASETS.NAMES", "RGBNT201"),
    ("SOLVER: {WEIGHT_DECAY: 1e-3}", "SOLVER.WEIGHT_DECAY", 0.001),
    ("SOLVER: {BIAS_LR_FACTOR: 3}", "SOLVER.BIAS_LR_FACTOR", 3.0),
    ("MODEL: {SIE_COE: 1}", "MODEL.SIE_COE", 1.0),
    ("MODEL: {STRIDE_SIZE: [ 12, 12 ]}", "MODEL.STRIDE_SIZE", [12, 12]),
    ("MODEL: {STRIDE_SIZE: '(12, 12)'}", "MODEL.STRIDE_SIZE", [12, 12]),
    ("SOLVER: {STEPS: [40, 70]}", "SOLVER.STEPS", (40, 70)),
    ("MODEL: {IF_WITH_CENTER: no}", "MODEL.IF_WITH_CENTER", "no"),
    ("TEST: {MISS: \"nothing\"}", "TEST.MISS", "nothing"),
    ("TEST: {MISS: None}", "TEST.MISS", "None"),
    ("TEST: {MISS: n}", "TEST.MISS", "n"),
    ("MODEL: {IF_LABELSMOOTH: 'off'}", "MODEL.IF_LABELSMOOTH", "off"),
    ("MODEL: {IF_LABELSMOOTH: off}", "MODEL.IF_LABELSMOOTH", "off"),
    ("MODEL: {IF_LABELSMOOTH: on}", "MODEL.IF_LABELSMOOTH", "on"),
    ("TEST: {FEAT_NORM: no}", "TEST.FEAT_NORM", "no"),
    ("TEST: {FEAT_NORM: yes}", "TEST.FEAT_NORM", "yes"),
    ("DATASETS: {CACHE: no}", "DATASETS.CACHE", "no"),
    ("MODEL: {USE_SDTPS: yes}", "MODEL.USE_SDTPS", True),
    ("SOLVER.MAX_EPOCHS: 3", "SOLVER.MAX_EPOCHS", 3),
])
def test_a_value_takes_the_type_of_its_key(tmp_path, text, name, expected):
    found = value_of(load_cfg(write(tmp_path, text)), name)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n"])
def test_an_empty_file_gives_the_defaults(tmp_path, text):
    cfg, expected = load_cfg(write(tmp_path, text)), get_cfg()
    expected.OUTPUT_DIR = "runs/some/run"
    assert cfg == expected


def test_the_command_line_beats_the_file_and_the_last_word_wins(tmp_path):
    path = write(tmp_path, "SOLVER: {MAX_EPOCHS: 3, SEED: 5}")
    cfg = load_cfg(path, ["SOLVER.MAX_EPOCHS", "7", "SOLVER.MAX_EPOCHS", "9"])
    assert (cfg.SOLVER.MAX_EPOCHS, cfg.SOLVER.SEED, cfg.SOLVER.EVAL_PERIOD) == (9, 5, 1)


@pytest.mark.parametrize(("text", "expected"), [("False", False), ("True", True)])
def test_switches_on_the_command_line(text, expected):
    assert load_cfg(None, ["MODEL.USE_SDTPS", text]).MODEL.USE_SDTPS is expected


@pytest.mark.parametrize("opts", [
    [], ["MODEL.IF_LABELSMOOTH", "off", "TEST.FEAT_NORM", "no", "TEST.MISS", "nt", "MODEL.DEVICE", "cpu"],
    ["SOLVER.WEIGHT_DECAY", "1e-5", "SOLVER.STEPS", "(40, 70)", "OUTPUT_DIR", "a b/ü"],
    ["MODEL.METRIC_LOSS_TYPE", "triplet_center", "MODEL.IF_WITH_CENTER", "yes", "MODEL.DEVICE_ID", "3"],
])
def test_a_dumped_configuration_loads_back_equal(tmp_path, opts):
    cfg = load_cfg(ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml", opts)
    assert load_cfg(write(tmp_path, cfg.dump())) == cfg


def test_output_dir_follows_the_file_unless_it_is_given(tmp_path, monkeypatch):
    path = write(tmp_path, "")
    assert load_cfg(path).OUTPUT_DIR == "runs/some/run"
    assert load_cfg(path, ["OUTPUT_DIR", "elsewhere"]).OUTPUT_DIR == "elsewhere"
    monkeypatch.chdir(path.parent)  # a name without folder still has one
    assert load_cfg("run.yml").OUTPUT_DIR == "runs/some/run"


def test_a_loaded_configuration_is_frozen():
    with pytest.raises(AttributeError):
        load_cfg().SOLVER.SEED = 1


# Mistakes

@pytest.mark.parametrize(("wrong", "right"), [
    ("MODEL.USE_SDTP", "MODEL.USE_SDTPS"),
    ("MODEL.SDTPS_SPARS_RATIO", "MODEL.SDTPS_SPARSE_RATIO"),
    ("SOLVER.MAX_EPOCH", "SOLVER.MAX_EPOCHS"),
    ("solver.max_epochs", "SOLVER.MAX_EPOCHS"),
    ("MAX_EPOCHS", "SOLVER.MAX_EPOCHS"),
    ("USE_SDTPS", "MODEL.USE_SDTPS"),
    ("INPUT.MAX_EPOCHS", "SOLVER.MAX_EPOCHS"),
    ("DATASET.ROOT_DIR", "DATASETS.ROOT_DIR"),
    ("SOLVER.USE_SDTPS", "MODEL.USE_SDTPS"),
])
def test_an_unknown_key_is_told_with_the_nearest(tmp_path, wrong, right):
    message = error(None, [wrong, "True"])
    assert repr(wrong) in message and message.endswith(f"the nearest valid key is {right}.")
    assert "the command line" in message
    section, _, leaf = wrong.rpartition(".")
    path = write(tmp_path, f"{section}:\n  {leaf}: True" if section else f"{leaf}: True")
    assert error(path).endswith(f"the nearest valid key is {right}.") and str(path) in error(path)


def test_an_unknown_key_near_nothing_is_told_where_the_keys_are():
    assert "FOO.BARBAZQUX" in (message := error(None, ["FOO.BARBAZQUX", "1"])) and "config/schema.py" in message


@pytest.mark.parametrize(("opts", "said"), [
    (["SOLVER.MAX_EPOCHS", "ten"], ["SOLVER.MAX_EPOCHS", "'ten'", "a whole number", "120"]),
    (["SOLVER.MAX_EPOCHS", "1.5"], ["SOLVER.MAX_EPOCHS", "1.5", "a whole number"]),
    (["SOLVER.MAX_EPOCHS", "True"], ["SOLVER.MAX_EPOCHS", "True", "a whole number"]),
    (["SOLVER.MAX_EPOCHS", ""], ["SOLVER.MAX_EPOCHS", "''", "a whole number"]),
    (["SOLVER.BASE_LR", "fast"], ["SOLVER.BASE_LR", "'fast'", "a number", "0.009"]),
    (["SOLVER.BASE_LR", "nan"], ["SOLVER.BASE_LR", "'nan'", "a number"]),
    (["MODEL.USE_SDTPS", "1"], ["MODEL.USE_SDTPS", "1", "True or False"]),
    (["MODEL.USE_SDTPS", "Treu"], ["MODEL.USE_SDTPS", "'Treu'", "True or False"]),
    (["INPUT.SIZE_TRAIN", "256"], ["INPUT.SIZE_TRAIN", "256", "list", "[256, 128]"]),
    (["INPUT.SIZE_TRAIN", "[1, 2, 3]"], ["INPUT.SIZE_TRAIN", "[1, 2, 3]", "whole numbers"]),
    (["INPUT.SIZE_TEST", "[0, 64]"], ["INPUT.SIZE_TEST", "[0, 64]", "whole numbers"]),
    (["INPUT.SIZE_TRAIN", "[12.5, 64]"], ["INPUT.SIZE_TRAIN", "[12.5, 64]", "whole numbers"]),
    (["INPUT.SIZE_TRAIN", "[128, 64]"], ["INPUT.SIZE_TRAIN", "INPUT.SIZE_TEST", "[128, 64]", "make them equal"]),
    (["INPUT.PIXEL_STD", "[0.5, 0.5, 0]"], ["INPUT.PIXEL_STD", "[0.5, 0.5, 0]", "positive"]),
    (["INPUT.PIXEL_MEAN", "[0.5, 0.5]"], ["INPUT.PIXEL_MEAN", "three numbers"]),
    (["INPUT.PROB", "1.2"], ["INPUT.PROB", "1.2", "[0, 1]"]),
    (["MODEL.SDTPS_SPARSE_RATIO", "0"], ["MODEL.SDTPS_SPARSE_RATIO", "(0, 1]"]),
    (["MODEL.SDTPS_SPARSE_RATIO", "1.5"], ["MODEL.SDTPS_SPARSE_RATIO", "1.5", "(0, 1]"]),
    (["MODEL.SDTPS_AGGR_RATIO", "-0.4"], ["MODEL.SDTPS_AGGR_RATIO", "-0.4", "(0, 1]"]),
    (["MODEL.SDTPS_BETA", "0.6"], ["MODEL.SDTPS_BETA", "0.6", "[0, 0.5]"]),
    (["MODEL.SDTPS_GUMBEL_TAU", "0"], ["MODEL.SDTPS_GUMBEL_TAU", "greater than 0"]),
    (["SOLVER.MAX_EPOCHS", "-1"], ["SOLVER.MAX_EPOCHS", "-1", "greater than 0"]),
    (["SOLVER.MAX_EPOCHS", "0"], ["SOLVER.MAX_EPOCHS", "greater than 0"]),
    (["SOLVER.SEED", "-1"], ["SOLVER.SEED", "-1", "in [0, 2^32)"]),
    (["SOLVER.BASE_LR", "-1e-4"], ["SOLVER.BASE_LR", "-0.0001", "greater than 0"]),
    (["SOLVER.WEIGHT_DECAY", "-0.1"], ["SOLVER.WEIGHT_DECAY", "-0.1", "0 or greater"]),
    (["DATALOADER.NUM_WORKERS", "-2"], ["DATALOADER.NUM_WORKERS", "-2", "-1 or greater"]),
    (["DATALOADER.NUM_INSTANCE", "0"], ["DATALOADER.NUM_INSTANCE", "greater than 0"]),
    (["SOLVER.IMS_PER_BATCH", "100"], ["SOLVER.IMS_PER_BATCH is 100", "DATALOADER.NUM_INSTANCE 16", "such as 96"]),
    (["SOLVER.IMS_PER_BATCH", "3"], ["SOLVER.IMS_PER_BATCH is 3", "such as 32"]),
    (["SOLVER.IMS_PER_BATCH", "16"], ["SOLVER.IMS_PER_BATCH", "DATALOADER.NUM_INSTANCE", "both 16", "larger multiple"]),
    (["SOLVER.IMS_PER_BATCH", "1"], ["SOLVER.IMS_PER_BATCH is 1", "BatchNorm", "raise it"]),
    (["SOLVER.IMS_PER_BATCH", "1", "DATALOADER.SAMPLER", "softmax"], ["SOLVER.IMS_PER_BATCH is 1", "BatchNorm", "raise it"]),
    (["DATALOADER.SAMPLER", "random"], ["DATALOADER.SAMPLER", "'random'", "'softmax_triplet' or 'softmax'"]),
    (["MODEL.ATM", "True"], ["MODEL.ATM is True", "MODEL.HDM False", "set MODEL.HDM to True or MODEL.ATM to False"]),
    (["MODEL.METRIC_LOSS_TYPE", "contrastive"], ["MODEL.METRIC_LOSS_TYPE", "'contrastive'", "'triplet_center'"]),
    (["MODEL.METRIC_LOSS_TYPE", "triplet_centre"], ["MODEL.METRIC_LOSS_TYPE", "the nearest is 'triplet_center'"]),
    (["MODEL.IF_WITH_CENTER", "yes"], ["MODEL.IF_WITH_CENTER is 'yes'", "METRIC_LOSS_TYPE 'triplet' has no center loss",
                                       "METRIC_LOSS_TYPE to 'triplet_center'", "IF_WITH_CENTER to 'no'"]),
    (["SOLVER.CENTER_LOSS_WEIGHT", "0"], ["SOLVER.CENTER_LOSS_WEIGHT", "greater than 0"]),
    (["SOLVER.CENTER_LR", "0"], ["SOLVER.CENTER_LR", "greater than 0"]),
    (["SOLVER.OPTIMIZER_NAME", "RMSprop"], ["SOLVER.OPTIMIZER_NAME", "'RMSprop'", "'SGD' or 'Adam' or 'AdamW'"]),
    (["TEST.NECK_FEAT", "aftre"], ["TEST.NECK_FEAT", "the nearest is 'after'"]),
    (["MODEL.DEVICE_ID", "0,1"], ["MODEL.DEVICE_ID", "'0,1'", "the number of one GPU"]),
    (["MODEL.DEVICE_ID", "-1"], ["MODEL.DEVICE_ID", "'-1'", "the number of one GPU"]),
    (["MODEL.TRANSFORMER_TYPE", "vit_base_patch16_244"], ["MODEL.TRANSFORMER_TYPE", "nearest", "'vit_base_patch16_224'"]),
    (["MODEL.TRANSFORMER_TYPE", "ViT-B16"], ["MODEL.TRANSFORMER_TYPE", "'ViT-B16'", "nearest known is 'ViT-B-16'"]),
    (["MODEL.TRANSFORMER_TYPE", "resnet50"], ["MODEL.TRANSFORMER_TYPE", "'resnet50'", "'ViT-B-16'"]),
    (["TEST.MISS", "x"], ["TEST.MISS", "'x'", "'nothing'", "'nt'"]),
    (["TEST.MISS", "none"], ["TEST.MISS", "'none'", "nearest is 'None'"]),
    (["TEST.RETURN_PATTERN", "4"], ["TEST.RETURN_PATTERN", "4", "1 or 2 or 3"]),
    (["MODEL.DIRECT", "2"], ["MODEL.DIRECT", "2", "0 or 1"]),
    (["SOLVER.OPTIMIZER_NAME", "adam"], ["SOLVER.OPTIMIZER_NAME", "'adam'", "nearest is 'Adam'"]),
    (["SOLVER.AMP", "bf61"], ["SOLVER.AMP", "'bf61'", "nearest is 'bf16'"]),
    (["MODEL.DEVICE", "gpu"], ["MODEL.DEVICE", "'gpu'", "'cuda:0'"]),
    (["MODEL.DEVICE", "cuda:x"], ["MODEL.DEVICE", "'cuda:x'", "'cuda:0'"]),
    (["MODEL.DEVICE", "cuda:"], ["MODEL.DEVICE", "'cuda:'", "'cuda:0'"]),
    (["MODEL.TRANSFORMER_TYPE", "ViT-B-16", "MODEL.PATCH_SIZE", "8"], ["MODEL.PATCH_SIZE is 8", "ViT-B-16", "set it to 0"]),
    (["MODEL.PRETRAIN_PATH_T", "hub", "MODEL.PATCH_SIZE", "8"], ["MODEL.PATCH_SIZE is 8", "set it to 0"]),
    (["SOLVER.MAX_EPOCHS"], ["KEY VALUE", "'SOLVER.MAX_EPOCHS'", "stands alone"]),
    (["SOLVER.SEED", "1", "SOLVER.MAX_EPOCHS"], ["KEY VALUE", "'SOLVER.MAX_EPOCHS'", "stands alone"]),
    (["SOLVER.BASE_LR", "1e400"], ["SOLVER.BASE_LR"]),
    (["INPUT.SIZE_TRAIN", "[True, 64]", "INPUT.SIZE_TEST", "[True, 64]"], ["INPUT.SIZE_TRAIN", "whole numbers"]),
    (["MODEL.DEVICE", "cuda:²"], ["MODEL.DEVICE", "'cuda:0'"]),
], ids=" ".join)
def test_a_wrong_value_is_told(opts, said):
    message = error(None, opts)
    assert [part for part in said if part not in message] == []
    assert message.endswith((".", "…"))


@pytest.mark.parametrize("opts", [
    ["MODEL.HDM", "True"], ["MODEL.HDM", "True", "MODEL.ATM", "True"],
    ["MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.USE_SDTPS", "True"], ["MODEL.FROZEN", "True"], ["TEST.RE_RANKING", "yes"],
    ["MODEL.METRIC_LOSS_TYPE", "center", "MODEL.IF_WITH_CENTER", "yes"], ["MODEL.METRIC_LOSS_TYPE", "triplet_center"],
    ["DATALOADER.SAMPLER", "softmax", "SOLVER.IMS_PER_BATCH", "7"],
    ["DATALOADER.SAMPLER", "softmax", "SOLVER.IMS_PER_BATCH", "16", "DATALOADER.NUM_INSTANCE", "16"],
], ids=" ".join)
def test_what_demo_names_loads(opts):
    cfg = load_cfg(None, opts)
    assert {name: str(value_of(cfg, name)) for name in opts[::2]} == dict(zip(opts[::2], opts[1::2], strict=True))


def test_a_wrong_value_in_a_file_is_told_with_the_file(tmp_path):
    path = write(tmp_path, "SOLVER:\n  MAX_EPOCHS: many")
    assert "SOLVER.MAX_EPOCHS" in error(path) and str(path) in error(path)


def test_a_missing_file_is_told(tmp_path):
    message = error(tmp_path / "none.yml")
    assert str(tmp_path / "none.yml") in message and "No such file" in message and "--config_file" in message


def test_a_folder_in_place_of_the_file_is_told(tmp_path):
    assert str(tmp_path) in (message := error(tmp_path)) and "--config_file" in message


def test_a_file_that_is_no_text_is_told(tmp_path):
    path = tmp_path / "picture.yml"
    path.write_bytes(b"\xff\xd8\xff\xe0")
    assert str(path) in (message := error(path)) and "cannot be read" in message


@pytest.mark.parametrize(("text", "line"), [("MODEL: [1, 2", 1), ("MODEL:\n  NAME: DeMo\n\tHEAD: 4", 3),
                                            ("SOLVER:\n  SEED: 1\n MAX_EPOCHS: 2", 3)])
def test_broken_yaml_is_told_with_its_line(tmp_path, text, line):
    path = write(tmp_path, text)
    message = error(path)
    assert str(path) in message and "not valid YAML" in message and f"line {line}" in message


@pytest.mark.parametrize("text", ["- MODEL\n- SOLVER", "just a text", "3"])
def test_yaml_without_keys_is_told(tmp_path, text):
    path = write(tmp_path, text)
    message = error(path)
    assert str(path) in message and "KEY: value" in message


def test_a_section_without_keys_is_no_unknown_key(tmp_path):
    """All of a section commented out, as one does in an experiment."""
    cfg = load_cfg(write(tmp_path, "MODEL:\n  # USE_SDTPS: True\nSOLVER:\n  SEED: 3"))
    assert cfg.SOLVER.SEED == 3 and not cfg.MODEL.USE_SDTPS


def test_a_section_that_holds_itself_is_told(tmp_path):
    path = tmp_path / "own.yml"
    path.write_text("MODEL: &model {X: *model}")
    assert "holds itself" in error(path, [])


def test_a_key_that_is_no_text_is_told(tmp_path):
    path = tmp_path / "date.yml"
    path.write_text("2026-01-01: 3")
    assert "Unknown key '2026-01-01'" in error(path, [])
