"""SEPS's configuration: names shared with re-identification, and mistakes told in a sentence."""
import pytest
import yaml
from config_files import error, write

from demo_sdtps.config import load_cfg
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.seps.schema import KEYS, SEPS_SCHEMA


def test_every_key_is_reported_and_its_default_allowed():
    names = [key.name for key in KEYS]
    assert len(names) == len(set(names)) > 50
    for key in KEYS:
        assert key.description
        assert key.allowed is None or (key.allowed(key.default) if callable(key.allowed) else key.default in key.allowed)


def test_a_key_of_both_kinds_has_the_same_type():
    shared = {key.name: key for key in KEYS if key.name in DEMO_SCHEMA.by_name}
    assert len(shared) > 25
    for name, key in shared.items():
        assert type(key.default) is type(DEMO_SCHEMA.by_name[name].default)


def test_defaults_are_the_originals():
    cfg = load_cfg(None, (), SEPS_SCHEMA)
    solver = cfg.SOLVER
    assert (cfg.MODEL.EMBED_SIZE, solver.IMS_PER_BATCH, solver.BASE_LR, solver.MAX_EPOCHS) == (512, 128, 2e-4, 30)
    assert (solver.STEPS, solver.GAMMA, solver.GRAD_CLIP, solver.ALL_NEGATIVES_EPOCHS) == ((9, 15, 20, 25), 0.3, 2.0, 1)
    assert cfg.is_frozen()


def test_the_rows_of_re_identification_stay_as_they_are():
    assert (DEMO_SCHEMA.by_name["SOLVER.MAX_EPOCHS"].default, DEMO_SCHEMA.by_name["MODEL.DROP_PATH"].default) == (120, 0.1)


def test_a_dumped_configuration_loads_back_equal(tmp_path):
    cfg = load_cfg(None, ["SOLVER.STEPS", "(1, 2)", "MODEL.TEXT_TOWER", "a b/ü", "OUTPUT_DIR", "x"], SEPS_SCHEMA)
    assert load_cfg(write(tmp_path, cfg.dump()), (), SEPS_SCHEMA) == cfg
    assert yaml.safe_load(cfg.dump())["SOLVER"]["IMS_PER_BATCH"] == 128


@pytest.mark.parametrize(("opts", "parts"), [
    (["MODEL.HDM", "True"], ["Unknown key 'MODEL.HDM'"]),
    (["MODEL.TEXT_TOWR", "x"], ["Unknown key", "MODEL.TEXT_TOWER"]),
    (["FOO.BARBAZQUX", "1"], ["seps/schema.py"]),
    (["MODEL.TOP_K", "100000"], ["MODEL.TOP_K", "100000", "at most 4096, as there are no more words or tokens"]),
    (["MODEL.EMBED_SIZE", "1000000"], ["MODEL.EMBED_SIZE", "at most 8192"]),
    (["SOLVER.IMS_PER_BATCH", "1"], ["SOLVER.IMS_PER_BATCH", "2 or greater"]),
    (["SOLVER.STEPS", "(5, 3)"], ["SOLVER.STEPS", "rising"]),
    (["SOLVER.STEPS", "(0, 3)"], ["SOLVER.STEPS", "above 0"]),
    (["SOLVER.GRAD_CLIP", "0"], ["SOLVER.GRAD_CLIP", "greater than 0"]),
    (["SOLVER.OPTIMIZER_NAME", "SGD"], ["SOLVER.OPTIMIZER_NAME", "'AdamW'"]),
    (["INPUT.MIN_CROP", "0"], ["INPUT.MIN_CROP", "(0, 1]"]),
    (["INPUT.MAX_WORDS", "2"], ["INPUT.MAX_WORDS", "3 or greater"]),
    (["MODEL.SDTPS_GUMBEL_TAU", "0"], ["MODEL.SDTPS_GUMBEL_TAU", "greater than 0"]),
    (["DATASETS.LONG_CAPTIONS", "maybe"], ["DATASETS.LONG_CAPTIONS", "'auto'"]),
    (["TEST.FOLDS", "0"], ["TEST.FOLDS", "greater than 0"]),
    (["TEST.SPLIT", "tset"], ["TEST.SPLIT", "'test'"]),
    (["MODEL.DUAL_AGGR", "False", "MODEL.PAPER_VERSION", "False"], ["MODEL.DUAL_AGGR", "paper version"]),
    (["MODEL.PATCH_SIZE", "8", "MODEL.PRETRAIN_PATH_T", "hub"], ["MODEL.PATCH_SIZE", "set it to 0"]),
    (["MODEL.TRANSFORMER_TYPE", "swin_base_patch4_windw7_224"], ["the nearest is 'swin_base_patch4_window7_224'"]),
    (["MODEL.TEXT_TOWER", ""], ["MODEL.TEXT_TOWER is empty"]),
    (["MODEL.DEVICE", "gpu"], ["MODEL.DEVICE"]),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_mistakes_are_reported(opts, parts):
    said = error(None, opts, SEPS_SCHEMA)
    assert all(part in said for part in parts)


def test_a_missing_file_names_one_of_its_kind(tmp_path):
    assert "configs/SEPS/flickr30k.yml" in error(tmp_path / "none.yml", (), SEPS_SCHEMA)
