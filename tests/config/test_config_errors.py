"""Configuration: a mistake is one sentence with the key, the value and where it comes from."""

import pytest
from config_files import error, write

from demo_sdtps.config import load_cfg
from demo_sdtps.config.left import LEFT
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, parse_yaml
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
    "equal blocks": ("MODEL.SLIM_BLOCKS [1,1] MODEL.SLIM_KEEP [0.5,0.5]", "[1, 1]"),
    "a choice": ("SOLVER.OPTIMIZER_NAME adam", "'Adam'"),
    "two sizes": ("INPUT.SIZE_TRAIN [128,64]", "INPUT.SIZE_TEST"),
    "no whole identities": ("SOLVER.IMS_PER_BATCH 100", "NUM_INSTANCE"),
    "one identity a batch": ("SOLVER.IMS_PER_BATCH 16", "NUM_INSTANCE"),
    "a module that needs another": ("MODEL.ATM True", "MODEL.HDM"),
    "noise that is not drawn": ("MODEL.SDTPS_GUMBEL_SELECT True", "MODEL.SDTPS_USE_GUMBEL"),
    "no center loss": ("MODEL.IF_WITH_CENTER yes", "METRIC_LOSS_TYPE"),
    "the backbone's depth": (f"MODEL.DEPTH 8 {CLIP}", "MODEL.DEPTH"),
    "the backbone's patches": (f"MODEL.PATCH_SIZE 8 {CLIP}", "MODEL.PATCH_SIZE"),
    "no modality left": ("TEST.MISS r MODEL.MODALITIES [RGB]", "MODEL.MODALITIES"),
    "all cases and one": ("TEST.CROSS_MODAL True TEST.MISS r", "TEST.MISS"),
    "a key without a value": ("SOLVER.SEED=", "'SOLVER.SEED'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_value_is_reported(name):
    words, reason = MISTAKES[name]
    message = error(None, words.split())
    assert words.partition(" ")[0].rstrip("=") in message and reason in message


def test_a_mistake_in_a_configuration_of_seps_is_reported():
    assert "'MODEL.HDM'" in error(None, ["MODEL.HDM", "True"], SEPS_SCHEMA)
    assert "SOLVER.STEPS" in error(None, ["SOLVER.STEPS", "(5,3)"], SEPS_SCHEMA)
    assert load_cfg(None, ["SOLVER.STEPS", "(3,)"], SEPS_SCHEMA).SOLVER.STEPS == (3,)  # not left


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("MODEL:\n  NAME: DeMo\n\tHEAD: 4", "line 3"),
        ("- MODEL\n- SOLVER", "KEY: value"),
        ("MODEL:\n  HEAD: 4\nSOLVER:\n  SEED: 1\nMODEL:\n  HDM: True", "MODEL stands twice"),
        ("SOLVER:\n  SEED: 1\n  SEED: 2", "SEED stands twice"),
        ("SOLVER:\n  SEED: 1\nSOLVER.SEED: 2", "SOLVER.SEED"),
        ("OUTPUT_DIR: Läufe".encode("latin-1"), "utf-8"),
        ("_BASE_: none.yml", "none.yml"),
        ("_BASE_: run.yml", "_BASE_"),
        ("_BASE_: no", "_BASE_"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_read_is_reported(tmp_path, content, reason):
    path = tmp_path / "run.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert str(tmp_path) in (message := error(path)) and reason in message


@pytest.mark.parametrize("schema", [DEMO_SCHEMA, SEPS_SCHEMA], ids=["DeMo", "SEPS"])
def test_a_missing_file_is_reported_with_an_example(tmp_path, schema):
    message = error(tmp_path / "none.yml", (), schema)
    assert str(tmp_path / "none.yml") in message and schema.example in message


def test_a_section_may_take_over_the_keys_of_another():
    """By YAML's merge, also those of a section that has taken over others."""
    text = "MODEL: &first {HEAD: 4}\nINPUT: &second {<<: *first, HEAD: 5}\nSOLVER: {<<: *second}\n"
    assert parse_yaml(text, "x")["SOLVER"] == {"HEAD": 5}


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
