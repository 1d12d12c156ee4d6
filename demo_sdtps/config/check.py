"""Combinations of configuration values that cannot run."""

import re

from yacs.config import CfgNode

from demo_sdtps.config.backbones import backbone_kind
from demo_sdtps.config.common import CLIP_BACKBONE, HUB, MISSING_CASES
from demo_sdtps.config.scores import check_score, reads_masks
from demo_sdtps.runtime.errors import UserError


def check_cfg(cfg: CfgNode) -> None:
    """Raise `UserError` for the first combination of values that cannot run."""
    if cfg.MODEL.ATM and not cfg.MODEL.HDM:
        raise UserError(
            "MODEL.ATM is True and MODEL.HDM False, but ATMoE weighs the features that HDM makes; set MODEL.HDM to "
            "True or MODEL.ATM to False."
        )
    if cfg.MODEL.SDTPS_GUMBEL_SELECT and not cfg.MODEL.SDTPS_USE_GUMBEL:
        raise UserError(
            "MODEL.SDTPS_GUMBEL_SELECT is True and MODEL.SDTPS_USE_GUMBEL False, but it chooses patches by the "
            "noise that SDTPS_USE_GUMBEL draws; set SDTPS_USE_GUMBEL to True or SDTPS_GUMBEL_SELECT to False."
        )
    if cfg.MODEL.IF_WITH_CENTER == "yes" and "center" not in cfg.MODEL.METRIC_LOSS_TYPE:
        raise UserError(
            f"MODEL.IF_WITH_CENTER is 'yes', but MODEL.METRIC_LOSS_TYPE {cfg.MODEL.METRIC_LOSS_TYPE!r} has no "
            "center loss; set METRIC_LOSS_TYPE to 'triplet_center' (or 'center'), or IF_WITH_CENTER to 'no'."
        )
    check_stage_keys(cfg.MODEL)
    if reads_masks(cfg) and not cfg.INPUT.JOINT_AUGMENTATION:
        raise UserError(
            f"MODEL.SLIM_SCORE is {cfg.MODEL.SLIM_SCORE!r}, which reads one mask for the three modalities, but "
            "INPUT.JOINT_AUGMENTATION is False, so that they are flipped and cropped apart; set it to True."
        )
    _check_batch(cfg)
    if cfg.INPUT.SIZE_TEST != cfg.INPUT.SIZE_TRAIN:
        raise UserError(
            f"INPUT.SIZE_TEST is {cfg.INPUT.SIZE_TEST} and INPUT.SIZE_TRAIN {cfg.INPUT.SIZE_TRAIN}, but the "
            "position embedding has one grid; make them equal."
        )
    name, patch = cfg.MODEL.TRANSFORMER_TYPE, cfg.MODEL.PATCH_SIZE
    if patch and (name == CLIP_BACKBONE or cfg.MODEL.PRETRAIN_PATH_T == HUB):
        others = "" if name == CLIP_BACKBONE else ", or MODEL.PRETRAIN_PATH_T to 'none'"
        raise UserError(
            f"MODEL.PATCH_SIZE is {patch}, but {name} with its published weights has a patch size of its "
            f"own; set it to 0{others}."
        )
    backbone_kind(name)
    if cfg.TEST.CROSS_MODAL and (
        cfg.TEST.RE_RANKING == "yes" or cfg.TEST.MISS not in ("None", "nothing")
    ):
        raise UserError(
            "TEST.CROSS_MODAL is True, which compares every set of modalities without re-ranking; leave TEST.MISS "
            "and TEST.RE_RANKING at their defaults."
        )
    check_device(cfg)
    present, missing = (
        {modality[0].lower() for modality in cfg.MODEL.MODALITIES},
        set(cfg.TEST.MISS),
    )
    if cfg.TEST.MISS in MISSING_CASES and not missing < present:
        raise UserError(
            f"TEST.MISS is {cfg.TEST.MISS!r}, but MODEL.MODALITIES is {cfg.MODEL.MODALITIES}; leave out some of "
            "these and not all."
        )


def check_stage_keys(model: CfgNode) -> None:
    """Raise `UserError` where MODEL.SLIM_BLOCKS and MODEL.SLIM_KEEP do not fit each other."""
    blocks, keep = model.SLIM_BLOCKS, model.SLIM_KEEP
    check_score(model.SLIM_SCORE, "MODEL.SLIM_SCORE")
    if len(blocks) != len(keep):
        raise UserError(
            f"MODEL.SLIM_BLOCKS is {blocks} and MODEL.SLIM_KEEP {keep}, but there must be one share for each "
            "block; give both as many."
        )
    if blocks != sorted(set(blocks)):
        raise UserError(
            f"MODEL.SLIM_BLOCKS is {blocks}, but the blocks must be strictly increasing; write "
            f"{sorted(set(blocks))}."
        )


def _check_batch(cfg: CfgNode) -> None:
    batch, instances = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    if batch < 2:
        raise UserError(
            "SOLVER.IMS_PER_BATCH is 1, but a BatchNorm in training needs at least two; raise it."
        )
    if cfg.DATALOADER.SAMPLER == "softmax":
        return
    if instances == 1 and "triplet" in cfg.MODEL.METRIC_LOSS_TYPE:
        raise UserError(
            "DATALOADER.NUM_INSTANCE is 1, so the triplet loss finds no positive in a batch; set it to 2 or more."
        )
    if batch % instances:
        multiple = max(2, round(batch / instances)) * instances
        raise UserError(
            f"SOLVER.IMS_PER_BATCH is {batch}, which DATALOADER.NUM_INSTANCE {instances} does not divide; "
            f"set it to a multiple such as {multiple}."
        )
    if batch == instances:
        raise UserError(
            f"SOLVER.IMS_PER_BATCH and DATALOADER.NUM_INSTANCE are both {batch}, so a batch holds a single "
            "identity and the triplet loss no negative; set IMS_PER_BATCH to a larger multiple."
        )


def check_device(cfg: CfgNode) -> None:
    """Raise `UserError` where MODEL.DEVICE names no device."""
    if not re.fullmatch("auto|cpu|cuda(:[0-9]{1,3})?", cfg.MODEL.DEVICE):
        raise UserError(
            f"MODEL.DEVICE is {cfg.MODEL.DEVICE!r}, but it must be 'auto', 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …"
        )
