"""Combinations of configuration values that cannot run."""

from yacs.config import CfgNode

from demo_sdtps.config.common import CLIP_BACKBONE, HUB, MISSING_CASES
from demo_sdtps.config.scores import reads_masks
from demo_sdtps.runtime.errors import UserError


def check_cfg(cfg: CfgNode) -> None:
    """Raise `UserError` for the first combination of values that cannot run."""
    model, miss = cfg.MODEL, cfg.TEST.MISS
    if model.ATM and not model.HDM:
        raise UserError(
            "MODEL.ATM is True and MODEL.HDM False, which makes its inputs; set MODEL.HDM to True or MODEL.ATM to False."
        )
    if model.SDTPS_GUMBEL_SELECT and not model.SDTPS_USE_GUMBEL:
        raise UserError(
            "MODEL.SDTPS_GUMBEL_SELECT is True and MODEL.SDTPS_USE_GUMBEL False, which draws its noise; make them equal."
        )
    if model.IF_WITH_CENTER == "yes" and "center" not in model.METRIC_LOSS_TYPE:
        raise UserError(
            f"MODEL.IF_WITH_CENTER is 'yes', but MODEL.METRIC_LOSS_TYPE {model.METRIC_LOSS_TYPE!r} has no center loss; set "
            "it to 'triplet_center', or IF_WITH_CENTER to 'no'."
        )
    check_stage_keys(model)
    if reads_masks(cfg) and not cfg.INPUT.JOINT_AUGMENTATION:
        raise UserError(
            f"MODEL.SLIM_SCORE is {model.SLIM_SCORE!r}, which reads one mask for all modalities, but "
            "INPUT.JOINT_AUGMENTATION is False, which flips and crops them apart; set it to True."
        )
    _check_batch(cfg)
    if cfg.INPUT.SIZE_TEST != cfg.INPUT.SIZE_TRAIN:
        raise UserError(
            f"INPUT.SIZE_TEST is {cfg.INPUT.SIZE_TEST} and INPUT.SIZE_TRAIN {cfg.INPUT.SIZE_TRAIN}; make them equal."
        )
    name, patch = model.TRANSFORMER_TYPE, model.PATCH_SIZE
    if patch and (name == CLIP_BACKBONE or model.PRETRAIN_PATH_T == HUB):
        raise UserError(
            f"MODEL.PATCH_SIZE is {patch}, but {name} with its published weights has a patch size of its own; set it to 0."
        )
    if cfg.TEST.CROSS_MODAL and (cfg.TEST.RE_RANKING == "yes" or miss not in ("None", "nothing")):
        raise UserError(
            "TEST.CROSS_MODAL is True, which compares all cases without re-ranking; leave TEST.MISS and TEST.RE_RANKING out."
        )
    present = {modality[0].lower() for modality in model.MODALITIES}
    if miss in MISSING_CASES and not set(miss) < present:
        raise UserError(
            f"TEST.MISS is {miss!r}, but MODEL.MODALITIES is {model.MODALITIES}; leave out some of these and not all."
        )


def check_stage_keys(model: CfgNode) -> None:
    """Raise `UserError` where MODEL.SLIM_BLOCKS and MODEL.SLIM_KEEP do not fit each other."""
    blocks, keep = model.SLIM_BLOCKS, model.SLIM_KEEP
    if len(blocks) != len(keep):
        raise UserError(
            f"MODEL.SLIM_BLOCKS is {blocks} and MODEL.SLIM_KEEP {keep}; give one share for each block."
        )
    if blocks != sorted(set(blocks)):
        raise UserError(
            f"MODEL.SLIM_BLOCKS is {blocks}, but it must be strictly increasing; write {sorted(set(blocks))}."
        )


def _check_batch(cfg: CfgNode) -> None:
    batch, instances = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    if batch < 2:
        raise UserError("SOLVER.IMS_PER_BATCH is 1, but BatchNorm needs two or more; raise it.")
    if cfg.DATALOADER.SAMPLER == "softmax":
        return
    if instances == 1 and "triplet" in cfg.MODEL.METRIC_LOSS_TYPE:
        raise UserError(
            "DATALOADER.NUM_INSTANCE is 1, so the triplet loss finds no positive in a batch; set it to 2 or more."
        )
    if batch % instances:
        multiple = max(2, round(batch / instances)) * instances
        raise UserError(
            f"SOLVER.IMS_PER_BATCH is {batch}, which DATALOADER.NUM_INSTANCE {instances} does not divide; set it to a multiple "
            f"such as {multiple}."
        )
    if batch == instances:
        raise UserError(
            f"SOLVER.IMS_PER_BATCH and DATALOADER.NUM_INSTANCE are both {batch}, so the triplet loss has no negative; set "
            "IMS_PER_BATCH to a larger multiple."
        )
