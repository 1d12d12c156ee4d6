"""The configuration: the sentence for every mistake."""

import pytest
from config_files import error, write

from demo_sdtps.config import load_cfg


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
def test_an_unknown_key_is_reported_with_the_nearest(tmp_path, wrong, right):
    message = error(None, [wrong, "True"])
    assert repr(wrong) in message and message.endswith(f"the nearest valid key is {right}.")
    assert "the command line" in message
    section, _, leaf = wrong.rpartition(".")
    path = write(tmp_path, f"{section}:\n  {leaf}: True" if section else f"{leaf}: True")
    assert error(path).endswith(f"the nearest valid key is {right}.") and str(path) in error(path)


def test_an_unknown_key_near_nothing_is_reported_where_the_keys_are():
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
    (["INPUT.PADDING", "1000000"], ["INPUT.PADDING", "at most 4096"]),
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
    (["MODEL.SDTPS_GUMBEL_SELECT", "True"], ["MODEL.SDTPS_GUMBEL_SELECT is True", "SDTPS_USE_GUMBEL False",
                                             "set SDTPS_USE_GUMBEL to True or SDTPS_GUMBEL_SELECT to False"]),
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
    (["MODEL.TRANSFORMER_TYPE", "ViT-B16"], ["MODEL.TRANSFORMER_TYPE", "'ViT-B16'", "nearest is 'ViT-B-16'"]),
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
    (["MODEL.PRETRAIN_PATH_T", "hub", "MODEL.PATCH_SIZE", "8"],
     ["MODEL.PATCH_SIZE is 8", "set it to 0, or MODEL.PRETRAIN_PATH_T to 'none'"]),
    (["SOLVER.MAX_EPOCHS"], ["KEY VALUE", "'SOLVER.MAX_EPOCHS'", "has no value"]),
    (["SOLVER.SEED", "1", "SOLVER.MAX_EPOCHS"], ["KEY VALUE", "'SOLVER.MAX_EPOCHS'", "has no value"]),
    (["SOLVER.BASE_LR", "1e400"], ["SOLVER.BASE_LR"]),
    (["INPUT.SIZE_TRAIN", "[True, 64]", "INPUT.SIZE_TEST", "[True, 64]"], ["INPUT.SIZE_TRAIN", "whole numbers"]),
    (["MODEL.DEVICE", "cuda:²"], ["MODEL.DEVICE", "'cuda:0'"]),
], ids=" ".join)
def test_a_wrong_value_is_reported(opts, said):
    message = error(None, opts)
    assert [part for part in said if part not in message] == []
    assert message.endswith((".", "…"))


def test_a_wrong_value_in_a_file_is_reported_with_the_file(tmp_path):
    path = write(tmp_path, "SOLVER:\n  MAX_EPOCHS: many")
    assert "SOLVER.MAX_EPOCHS" in error(path) and str(path) in error(path)


def test_a_missing_file_is_reported(tmp_path):
    message = error(tmp_path / "none.yml")
    assert str(tmp_path / "none.yml") in message and "No such file" in message and "--config_file" in message


def test_a_folder_in_place_of_the_file_is_reported(tmp_path):
    assert str(tmp_path) in (message := error(tmp_path)) and "--config_file" in message


@pytest.mark.parametrize("content", [b"\xff\xd8\xff\xe0", "OUTPUT_DIR: Läufe".encode("latin-1")],
                         ids=["an image", "another encoding"])
def test_a_file_that_is_not_utf_8_is_reported(tmp_path, content):
    path = tmp_path / "run.yml"
    path.write_bytes(content)
    assert str(path) in (message := error(path)) and "cannot be read" in message


@pytest.mark.parametrize(("text", "line"), [("MODEL: [1, 2", 1), ("MODEL:\n  NAME: DeMo\n\tHEAD: 4", 3),
                                            ("SOLVER:\n  SEED: 1\n MAX_EPOCHS: 2", 3)])
def test_broken_yaml_is_reported_with_its_line(tmp_path, text, line):
    path = write(tmp_path, text)
    message = error(path)
    assert str(path) in message and "not valid YAML" in message and f"line {line}" in message


@pytest.mark.parametrize("text", ["- MODEL\n- SOLVER", "just a text", "3"])
def test_yaml_without_keys_is_reported(tmp_path, text):
    path = write(tmp_path, text)
    message = error(path)
    assert str(path) in message and "KEY: value" in message


def test_a_section_without_keys_is_no_unknown_key(tmp_path):
    """All of a section commented out, as one does in an experiment."""
    cfg = load_cfg(write(tmp_path, "MODEL:\n  # USE_SDTPS: True\nSOLVER:\n  SEED: 3"))
    assert cfg.SOLVER.SEED == 3 and not cfg.MODEL.USE_SDTPS


def test_a_section_that_holds_itself_is_reported(tmp_path):
    path = tmp_path / "own.yml"
    path.write_text("MODEL: &model {X: *model}")
    assert "contains itself" in error(path, [])


def test_a_key_that_is_no_text_is_reported(tmp_path):
    path = tmp_path / "date.yml"
    path.write_text("2026-01-01: 3")
    assert "Unknown key '2026-01-01'" in error(path, [])
