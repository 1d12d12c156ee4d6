"""Configuration: a mistake is one sentence with the key, the value and where it comes from."""

import pytest
from config_files import error, write

from demo_sdtps.config.load import DEMO_SCHEMA, load_cfg, parse_yaml
from seps.schema import SEPS_SCHEMA


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("MODEL.SDTPS_SPARS_RATIO", "MODEL.SDTPS_SPARSE_RATIO"),
        ("solver.max_epochs", "SOLVER.MAX_EPOCHS"),
        ("MAX_EPOCHS", "SOLVER.MAX_EPOCHS"),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest(tmp_path, wrong, right):
    message = error(None, [wrong, "True"])
    assert repr(wrong) in message and message.endswith(f"the nearest valid key is {right}.")
    assert "the command line" in message
    section, _, leaf = wrong.rpartition(".")
    path = write(tmp_path, f"{section}:\n  {leaf}: True" if section else f"{leaf}: True")
    assert error(path).endswith(f"the nearest valid key is {right}.") and str(path) in error(path)


MISTAKES = {
    "a type": ("SOLVER.MAX_EPOCHS ten", ["'ten'", "a whole number", "120"]),
    "no number": ("SOLVER.BASE_LR nan", ["'nan'", "a number"]),
    "a range": ("MODEL.SDTPS_SPARSE_RATIO 1.5", ["1.5", "(0, 1]"]),
    "an end of a range": ("MODEL.SDTPS_SPARSE_RATIO 0", ["0", "(0, 1]"]),
    "an end that is excluded": ("DATASETS.VALIDATION 1", ["1.0", "[0, 1)"]),
    "equal blocks": ("MODEL.SLIM_BLOCKS [1,1] MODEL.SLIM_KEEP [0.5,0.5]", ["write [1]."]),
    "a choice": ("SOLVER.OPTIMIZER_NAME adam", ["'SGD' or 'Adam' or 'AdamW'", "nearest is 'Adam'"]),
    "two sizes": ("INPUT.SIZE_TRAIN [128,64]", ["INPUT.SIZE_TEST", "make them equal"]),
    "no whole identities": ("SOLVER.IMS_PER_BATCH 100", ["NUM_INSTANCE 16", "such as 96"]),
    "one identity a batch": ("SOLVER.IMS_PER_BATCH 16", ["both 16", "larger multiple"]),
    "a module that needs another": ("MODEL.ATM True", ["HDM False", "set MODEL.HDM to True or"]),
    "no center loss": ("MODEL.IF_WITH_CENTER yes", ["METRIC_LOSS_TYPE 'triplet'"]),
    "the backbone's depth": ("MODEL.DEPTH 8 MODEL.TRANSFORMER_TYPE ViT-B-16", ["to 0"]),
    "the backbone's patches": ("MODEL.PATCH_SIZE 8 MODEL.TRANSFORMER_TYPE ViT-B-16", ["to 0"]),
    "a key without a value": ("SOLVER.SEED=", ["'SOLVER.SEED' has no value"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_value_is_reported(name):
    words, phrases = MISTAKES[name]
    message = error(None, words.split())
    key = words.partition(" ")[0].rstrip("=")
    assert [phrase for phrase in (key, *phrases) if phrase not in message] == []


def test_a_mistake_in_a_configuration_of_seps_is_reported():
    assert "Unknown key 'MODEL.HDM'" in error(None, ["MODEL.HDM", "True"], SEPS_SCHEMA)
    assert "strictly increasing" in error(None, ["SOLVER.STEPS", "(5,3)"], SEPS_SCHEMA)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("SOLVER:\n  MAX_EPOCHS: many", "SOLVER.MAX_EPOCHS"),
        ("MODEL:\n  NAME: DeMo\n\tHEAD: 4", "line 3"),
        ("- MODEL\n- SOLVER", "KEY: value"),
        (
            "MODEL:\n  HEAD: 4\nSOLVER:\n  SEED: 1\nMODEL:\n  HDM: True",
            "MODEL stands in lines 1 and 5",
        ),
        ("SOLVER:\n  SEED: 1\n  SEED: 2", "SEED stands in lines 2 and 3"),
        ("SOLVER:\n  SEED: 1\nSOLVER.SEED: 2", "SOLVER.SEED stands twice, in a section"),
        ("OUTPUT_DIR: Läufe".encode("latin-1"), "cannot be read"),
        ("_BASE_: none.yml", "none.yml cannot be read"),
        ("_BASE_: run.yml", "cannot start from its _BASE_ (it starts from itself)"),
        ("_BASE_: no", "it must name a file"),
        ("_BASE_: [5]", "it must name a file"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_read_is_reported(tmp_path, content, reason):
    path = tmp_path / "run.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert str(tmp_path) in (message := error(path)) and reason in message


@pytest.mark.parametrize("schema", [DEMO_SCHEMA, SEPS_SCHEMA], ids=["DeMo", "SEPS"])
def test_a_missing_file_is_reported(tmp_path, schema):
    message = error(tmp_path / "none.yml", (), schema)
    assert str(tmp_path / "none.yml") in message and f"such as {schema.example}" in message


@pytest.mark.parametrize(
    "second",
    ["INPUT: &second {<<: *first, HEAD: 5}", "INPUT: {SIZE: &second {<<: *first, HEAD: 5}}"],
    ids=["section", "deeper"],
)
def test_a_section_may_take_over_the_keys_of_another(second):
    """By YAML's merge, also that of a section that has taken over others."""
    text = f"MODEL: &first {{HEAD: 4}}\n{second}\nSOLVER: {{<<: *second}}\n"
    assert parse_yaml(text, "x")["SOLVER"] == {"HEAD": 5}


@pytest.mark.parametrize("text", ["SOLVER.SEED: 3", "SOLVER:\n  SEED: 3"], ids=["name", "section"])
def test_a_file_replaces_what_it_starts_from_however_both_write_it(tmp_path, text):
    (tmp_path / "base.yml").write_text("SOLVER.SEED: 1\nSOLVER:\n  MAX_EPOCHS: 7\n")
    (tmp_path / "run.yml").write_text(f"_BASE_: base.yml\n{text}\n")
    cfg = load_cfg(tmp_path / "run.yml")
    assert (cfg.SOLVER.SEED, cfg.SOLVER.MAX_EPOCHS) == (3, 7)
