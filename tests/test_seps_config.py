"""SEPS's configuration: names shared with re-identification, and defaults. Its mistakes are in tests/test_config_errors.py."""
import yaml
from config_files import write

from demo_sdtps.config import load_cfg
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.seps.schema import SEPS_SCHEMA


def test_defaults_are_the_originals():
    cfg = load_cfg(None, (), SEPS_SCHEMA)
    solver = cfg.SOLVER
    assert (cfg.MODEL.EMBED_SIZE, solver.IMS_PER_BATCH, solver.BASE_LR, solver.MAX_EPOCHS) == (512, 128, 2e-4, 30)
    assert (solver.STEPS, solver.GAMMA, solver.GRAD_CLIP, solver.ALL_NEGATIVES_EPOCHS) == ((9, 15, 20, 25), 0.3, 2.0, 1)
    assert (DEMO_SCHEMA.by_name["SOLVER.MAX_EPOCHS"].default, DEMO_SCHEMA.by_name["MODEL.DROP_PATH"].default) == (120, 0.1)


def test_a_dumped_configuration_loads_back_equal(tmp_path):
    cfg = load_cfg(None, ["SOLVER.STEPS", "(1, 2)", "MODEL.TEXT_TOWER", "a b/ü", "OUTPUT_DIR", "x"], SEPS_SCHEMA)
    assert load_cfg(write(tmp_path, cfg.dump()), (), SEPS_SCHEMA) == cfg
    assert yaml.safe_load(cfg.dump())["SOLVER"]["IMS_PER_BATCH"] == 128
