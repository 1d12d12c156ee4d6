"""Keys that left: a file, a checkpoint or the command line may set the old default, and no other value."""

import pytest
from config_files import error, write

from demo_sdtps.config import load_cfg
from demo_sdtps.config.left import LEFT
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText
from seps.schema import SEPS_SCHEMA


def test_the_old_default_of_each_is_dropped(tmp_path):
    assert not LEFT.keys() & DEMO_SCHEMA.by_name.keys()
    lines = [f"{name}: {key.default!r}" for name, key in LEFT.items()]
    path = write(tmp_path, "\n".join(["SOLVER.SEED: 5", *lines]))
    cfg = load_cfg(path, [word for name, key in LEFT.items() for word in (name, str(key.default))])
    assert cfg.SOLVER.SEED == 5 and "WANDB" not in cfg.SOLVER and "NAME" not in cfg.MODEL


@pytest.mark.parametrize("name", LEFT)
def test_another_value_is_refused_with_what_to_do(tmp_path, name):
    message = error(None, [name, "27"])
    assert message.startswith(f"{name} in the command line is ") and LEFT[name].instead in message
    stored = StoredText(tmp_path / "best.pth", f"{name}: 27")
    assert (message := error(stored)).startswith(f"{name} in the checkpoint {stored.path} is ")
    assert "--config_file" in message and LEFT[name].instead in message


def test_a_key_that_another_schema_has_is_its_own():
    assert load_cfg(None, ["SOLVER.STEPS", "(3,)"], SEPS_SCHEMA).SOLVER.STEPS == (3,)
