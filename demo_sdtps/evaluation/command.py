"""A trained model and its data, for every command after training."""

from collections.abc import Sequence
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets import Sample, check_trained_on, read_splits
from demo_sdtps.evaluation.extraction import Model
from demo_sdtps.modeling import DeMo, make_model
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.exported import ExportedModel, is_exported
from demo_sdtps.modeling.inference import compile_model
from demo_sdtps.runtime.device import choose_device, set_seed
from demo_sdtps.runtime.distributed import check_equal, check_single


def prepare_evaluation(cfg: CfgNode, several: bool = False) -> torch.device:
    """Seed the random generators → the device."""
    if not several:
        check_single("an evaluation")
    if not cfg.TEST.WEIGHT:
        raise UserError(
            "No weights to evaluate: give TEST.WEIGHT (or --weight) a checkpoint, as last.pth or best.pth of a run."
        )
    set_seed(cfg.SOLVER.SEED)
    return choose_device(cfg)


def load_model_and_data(
    cfg: CfgNode, splits: Sequence[str] = ("query", "gallery"), several: bool = False
) -> tuple[DeMo, dict[str, list[Sample]]]:
    """The model of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device, and the samples by split.

    The numbers of identities and cameras come from the checkpoint, so the training split is not read.
    """
    device = prepare_evaluation(cfg, several)
    checkpoint = read_checkpoint(cfg.TEST.WEIGHT)
    check_trained_on(cfg, checkpoint.origin.get("dataset"), checkpoint.path)
    model = make_model(cfg, checkpoint.num_class, checkpoint.camera_num)
    load_weights(model, checkpoint, cfg)
    result = _read_samples(cfg, splits, model.backbone.cameras, checkpoint.path)
    model = model.eval().to(device)
    if cfg.MODEL.COMPILE:
        compile_model(model, device)
    return model, result


def load_any_model_and_data(
    cfg: CfgNode, splits: Sequence[str] = ("query", "gallery"), several: bool = False
) -> tuple[Model, dict[str, list[Sample]]]:
    """`load_model_and_data`, also of an exported file."""
    if not is_exported(cfg.TEST.WEIGHT):
        return load_model_and_data(cfg, splits, several)
    prepare_evaluation(cfg, several)
    model = ExportedModel(cfg.TEST.WEIGHT, cfg.TEST.AMP)
    model.check_settings(cfg)
    model.check_pattern(cfg.TEST.RETURN_PATTERN)
    check_trained_on(cfg, model.about["origin"].get("dataset"), model.path)
    return model, _read_samples(cfg, splits, model.cameras, model.path)


def _read_samples(
    cfg: CfgNode, splits: Sequence[str], known: int, path: Path
) -> dict[str, list[Sample]]:
    """The samples by split, whose cameras the weights `path` know, but for those with `known` 0, which have no embedding."""
    result = read_splits(cfg, splits)
    check_equal(result, "samples")
    cameras = 1 + max(sample.camera for samples in result.values() for sample in samples)
    if known and cameras > known:
        raise UserError(
            f"The weights {path} know {known} cameras, but "
            f"{cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} has {cameras}; use weights trained on this data."
        )
    return result
