"""The words after the flags: KEY VALUE and KEY=VALUE, mixed."""
import pytest
from commands import CONFIG, ONE_LINE
from config_files import error

from demo_sdtps import train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.tools import profile_flops


@pytest.mark.parametrize("opts", [
    ["SOLVER.BASE_LR=0.25", "SOLVER.SEED=7"], ["SOLVER.BASE_LR=0.25", "SOLVER.SEED", "7"],
    ["SOLVER.SEED", "7", "SOLVER.BASE_LR=0.25"], ["SOLVER.SEED=1", "SOLVER.BASE_LR", "0.25", "SOLVER.SEED=7"]], ids=" ".join)
def test_a_sign_between_key_and_value_changes_nothing(opts):
    assert load_cfg(None, opts) == load_cfg(None, ["SOLVER.BASE_LR", "0.25", "SOLVER.SEED", "7"])


@pytest.mark.parametrize("opts", [["OUTPUT_DIR=runs/lr=0.1"], ["OUTPUT_DIR", "runs/lr=0.1"]], ids=" ".join)
def test_a_value_may_hold_the_sign(opts):
    assert load_cfg(None, opts).OUTPUT_DIR == "runs/lr=0.1"


def test_values_of_a_program_need_not_be_text():
    cfg = load_cfg(None, ["SOLVER.SEED", 7, "INPUT.SIZE_TRAIN", [64, 32], "INPUT.SIZE_TEST", [64, 32]])
    assert (cfg.SOLVER.SEED, cfg.INPUT.SIZE_TRAIN) == (7, [64, 32])


def test_a_value_may_look_like_a_key_with_a_value():
    cfg = load_cfg(None, ["OUTPUT_DIR", "SOLVER.SEED=7", "INPUT.SIZE_TRAIN=[64, 32]", "INPUT.SIZE_TEST", "[64,32]"])
    assert (cfg.OUTPUT_DIR, cfg.SOLVER.SEED, cfg.INPUT.SIZE_TRAIN) == ("SOLVER.SEED=7", 1111, [64, 32])


@pytest.mark.parametrize(("opts", "said"), [
    (["SOLVER.SEED="], "The option 'SOLVER.SEED' has no value, or a space beside its =; write KEY VALUE or KEY=VALUE."),
    (["SOLVER.SEED=", "SOLVER.MAX_EPOCHS=3"], "The option 'SOLVER.SEED' has no value"),
    (["SOLVER.SEED", "=", "3"], "The option 'SOLVER.SEED' has no value, or a space"),
    (["SOLVER.SEED", "=3"], "The option 'SOLVER.SEED' has no value, or a space"),
    (["SOLVER.SEED=3", "SOLVER.MAX_EPOCHS"], "'SOLVER.MAX_EPOCHS' has no value"),
    (["SOLVER.SED=3"], "Unknown key 'SOLVER.SED' in the command line; the nearest valid key is SOLVER.SEED."),
    (["SOLVER.SEED=three"], "SOLVER.SEED in the command line is 'three' (a text), but it must be a whole number"),
    (["../x=3", "4"], "Unknown key '../x=3'"), (["=3", "4"], "Unknown key '=3'")], ids=repr)
def test_what_cannot_be_understood_is_reported(opts, said):
    assert said in error(None, opts)


def test_a_key_without_a_value_is_reported_though_a_flag_stands_for_a_pair(command, tmp_path):
    from demo_sdtps import test_net

    _, _, stderr = command(test_net.main, "--config_file", CONFIG, "--weight", tmp_path / "w.pth", "TEST.MISS")
    assert stderr == ONE_LINE + ("The options after the flags must be KEY VALUE pairs, but 'TEST.MISS' has no value; give it "
                                 "one or remove it.\n")


def test_commands_understand_it(command):
    words = ["--config_file", CONFIG, "MODEL.USE_SDTPS=False", "INPUT.SIZE_TRAIN=[64,32]", "INPUT.SIZE_TEST=[64, 32]"]
    code, stdout, _ = command(profile_flops.main, *words)
    assert code == 0 and "64×32" in stdout and "SDTPS" not in stdout
    code, _, stderr = command(train_net.main, *words, "DATASETS.ROOT_DIR=nowhere")
    assert code == 2 and "is not at nowhere/RGBNT201" in stderr
