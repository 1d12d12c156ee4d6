"""Configuration: a mistake is one sentence with the key, the value and where it comes from."""
import pytest
from commands import CONFIG, ONE_LINE
from config_files import error, write

from demo_sdtps import test_net, train_net
from demo_sdtps.seps.schema import SEPS_SCHEMA


@pytest.mark.parametrize(("wrong", "right"), [
    ("MODEL.SDTPS_SPARS_RATIO", "MODEL.SDTPS_SPARSE_RATIO"),
    ("solver.max_epochs", "SOLVER.MAX_EPOCHS"),
    ("MAX_EPOCHS", "SOLVER.MAX_EPOCHS"),
    ("SOLVER.USE_SDTPS", "MODEL.USE_SDTPS"),
])
def test_an_unknown_key_is_reported_with_the_nearest(tmp_path, wrong, right):
    message = error(None, [wrong, "True"])
    assert repr(wrong) in message and message.endswith(f"the nearest valid key is {right}.")
    assert "the command line" in message
    section, _, leaf = wrong.rpartition(".")
    path = write(tmp_path, f"{section}:\n  {leaf}: True" if section else f"{leaf}: True")
    assert error(path).endswith(f"the nearest valid key is {right}.") and str(path) in error(path)


def test_an_unknown_key_near_nothing_is_reported_how_the_keys_are_listed():
    assert "FOO.BARBAZQUX" in (message := error(None, ["FOO.BARBAZQUX", "1"])) and "--keys" in message


@pytest.mark.parametrize(("opts", "said"), [
    # The type
    (["SOLVER.MAX_EPOCHS", "ten"], ["SOLVER.MAX_EPOCHS", "'ten'", "a whole number", "120"]),
    (["SOLVER.MAX_EPOCHS", "1.5"], ["SOLVER.MAX_EPOCHS", "1.5", "a whole number"]),
    (["SOLVER.MAX_EPOCHS", "True"], ["SOLVER.MAX_EPOCHS", "True", "a whole number"]),
    (["SOLVER.BASE_LR", "nan"], ["SOLVER.BASE_LR", "'nan'", "a number"]),
    (["MODEL.USE_SDTPS", "1"], ["MODEL.USE_SDTPS", "1", "True or False"]),
    (["INPUT.SIZE_TRAIN", "256"], ["INPUT.SIZE_TRAIN", "256", "list", "[256, 128]"]),
    # The value
    (["INPUT.SIZE_TRAIN", "[1, 2, 3]"], ["INPUT.SIZE_TRAIN", "[1, 2, 3]", "whole numbers"]),
    (["INPUT.SIZE_TRAIN", "[12.5, 64]"], ["INPUT.SIZE_TRAIN", "[12.5, 64]", "whole numbers"]),
    (["INPUT.SIZE_TRAIN", "[True, 64]", "INPUT.SIZE_TEST", "[True, 64]"], ["INPUT.SIZE_TRAIN", "whole numbers"]),
    (["INPUT.PIXEL_STD", "[0.5, 0.5, 0]"], ["INPUT.PIXEL_STD", "[0.5, 0.5, 0]", "positive"]),
    (["INPUT.PROB", "1.2"], ["INPUT.PROB", "1.2", "[0, 1]"]),
    (["MODEL.SDTPS_SPARSE_RATIO", "1.5"], ["MODEL.SDTPS_SPARSE_RATIO", "1.5", "(0, 1]"]),
    (["SOLVER.MAX_EPOCHS", "0"], ["SOLVER.MAX_EPOCHS", "greater than 0"]),
    (["SOLVER.BASE_LR", "-1e-4"], ["SOLVER.BASE_LR", "-0.0001", "greater than 0"]),
    (["SOLVER.BASE_LR", "1e400"], ["SOLVER.BASE_LR"]),
    (["MODEL.DEVICE_ID", "0,1"], ["MODEL.DEVICE_ID", "'0,1'", "the number of one GPU"]),
    (["MODEL.TRANSFORMER_TYPE", "ViT-B16"], ["MODEL.TRANSFORMER_TYPE", "'ViT-B16'", "nearest is 'ViT-B-16'"]),
    (["MODEL.TRANSFORMER_TYPE", "resnet50"], ["MODEL.TRANSFORMER_TYPE", "'resnet50'", "'ViT-B-16'"]),
    (["SOLVER.OPTIMIZER_NAME", "adam"], ["SOLVER.OPTIMIZER_NAME", "'SGD' or 'Adam' or 'AdamW'", "nearest is 'Adam'"]),
    (["TEST.RETURN_PATTERN", "4"], ["TEST.RETURN_PATTERN", "4", "1 or 2 or 3"]),
    (["MODEL.DEVICE", "cuda:x"], ["MODEL.DEVICE", "'cuda:x'", "'cuda:0'"]),
    # Two values that do not fit each other
    (["INPUT.SIZE_TRAIN", "[128, 64]"], ["INPUT.SIZE_TRAIN", "INPUT.SIZE_TEST", "[128, 64]", "make them equal"]),
    (["SOLVER.IMS_PER_BATCH", "100"], ["SOLVER.IMS_PER_BATCH is 100", "DATALOADER.NUM_INSTANCE 16", "such as 96"]),
    (["SOLVER.IMS_PER_BATCH", "16"], ["SOLVER.IMS_PER_BATCH", "DATALOADER.NUM_INSTANCE", "both 16", "larger multiple"]),
    (["SOLVER.IMS_PER_BATCH", "1", "DATALOADER.SAMPLER", "softmax"], ["SOLVER.IMS_PER_BATCH is 1", "BatchNorm", "raise it"]),
    (["DATALOADER.NUM_INSTANCE", "1"], ["DATALOADER.NUM_INSTANCE is 1", "no positive"]),
    (["MODEL.ATM", "True"], ["MODEL.ATM is True", "MODEL.HDM False", "set MODEL.HDM to True or MODEL.ATM to False"]),
    (["MODEL.SDTPS_GUMBEL_SELECT", "True"], ["MODEL.SDTPS_GUMBEL_SELECT is True", "SDTPS_USE_GUMBEL False"]),
    (["MODEL.IF_WITH_CENTER", "yes"], ["MODEL.IF_WITH_CENTER is 'yes'", "METRIC_LOSS_TYPE 'triplet' has no center loss"]),
    (["MODEL.TRANSFORMER_TYPE", "ViT-B-16", "MODEL.PATCH_SIZE", "8"], ["MODEL.PATCH_SIZE is 8", "ViT-B-16", "set it to 0"]),
    (["MODEL.PRETRAIN_PATH_T", "hub", "MODEL.PATCH_SIZE", "8"],
     ["MODEL.PATCH_SIZE is 8", "set it to 0, or MODEL.PRETRAIN_PATH_T to 'none'"]),
    # KEY VALUE
    (["SOLVER.SEED", "1", "SOLVER.MAX_EPOCHS"], ["KEY VALUE", "'SOLVER.MAX_EPOCHS'", "has no value"]),
    (["SOLVER.SEED=", "SOLVER.MAX_EPOCHS=3"], ["'SOLVER.SEED' has no value"]),
    (["SOLVER.SEED", "=", "3"], ["'SOLVER.SEED' has no value, or a space beside its ="]),
    (["SOLVER.SED=3"], ["Unknown key 'SOLVER.SED' in the command line; the nearest valid key is SOLVER.SEED."]),
], ids=" ".join)
def test_a_wrong_value_is_reported(opts, said):
    message = error(None, opts)
    assert [part for part in said if part not in message] == []


@pytest.mark.parametrize(("opts", "said"), [
    (["MODEL.HDM", "True"], ["Unknown key 'MODEL.HDM'"]),
    (["MODEL.TEXT_TOWR", "x"], ["Unknown key", "MODEL.TEXT_TOWER"]),
    (["FOO.BARBAZQUX", "1"], ["--keys"]),
    (["SOLVER.IMS_PER_BATCH", "1"], ["SOLVER.IMS_PER_BATCH", "2 or greater"]),
    (["SOLVER.STEPS", "(5, 3)"], ["SOLVER.STEPS", "strictly increasing"]),
    (["SOLVER.OPTIMIZER_NAME", "SGD"], ["SOLVER.OPTIMIZER_NAME", "'AdamW'"]),
    (["TEST.SPLIT", "tset"], ["TEST.SPLIT", "'test'"]),
    (["MODEL.DUAL_AGGR", "False", "MODEL.PAPER_VERSION", "False"], ["MODEL.DUAL_AGGR", "paper version"]),
    (["MODEL.PATCH_SIZE", "8", "MODEL.PRETRAIN_PATH_T", "hub"], ["MODEL.PATCH_SIZE", "set it to 0"]),
    (["MODEL.TRANSFORMER_TYPE", "swin_base_patch4_windw7_224"], ["the nearest is 'swin_base_patch4_window7_224'"]),
    (["MODEL.TEXT_TOWER", ""], ["MODEL.TEXT_TOWER is empty"]),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_a_mistake_in_a_configuration_of_seps_is_reported(opts, said):
    message = error(None, opts, SEPS_SCHEMA)
    assert [part for part in said if part not in message] == []


@pytest.mark.parametrize(("content", "said"), [
    ("SOLVER:\n  MAX_EPOCHS: many", "SOLVER.MAX_EPOCHS"), ("MODEL:\n  NAME: DeMo\n\tHEAD: 4", "line 3"),
    ("- MODEL\n- SOLVER", "KEY: value"), ("OUTPUT_DIR: 2026-13-45", "not valid YAML"),
    ("OUTPUT_DIR: Läufe".encode("latin-1"), "cannot be read")], ids=str)
def test_a_file_that_cannot_be_read_is_reported(tmp_path, content, said):
    path = tmp_path / "run.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert str(path) in (message := error(path)) and said in message


@pytest.mark.parametrize("name", ["none.yml", ""])
def test_a_missing_file_is_reported(tmp_path, name):
    assert str(tmp_path / name) in (message := error(tmp_path / name)) and "--config_file" in message
    assert "configs/SEPS/flickr30k.yml" in error(tmp_path / name, (), SEPS_SCHEMA)


def test_commands_end_with_the_sentence_and_write_nothing(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for main in (train_net.main, test_net.main):
        code, stdout, stderr = command(main, "--config_file", CONFIG, "SOLVER.SED=3")
        assert code == 2 and not stdout and stderr == ONE_LINE + (
            "Unknown key 'SOLVER.SED' in the command line; the nearest valid key is SOLVER.SEED.\n")
    assert list(tmp_path.iterdir()) == []
