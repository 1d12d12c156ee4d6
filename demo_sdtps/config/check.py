"""Combinations of configuration values that cannot run, and what MODEL.SLIM_SCORE names; without torch, for --help."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from demo_sdtps.config.common import CLIP_BACKBONE, HUB, MISSING_CASES
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode


def import_score(name: str) -> Any:
    """The user's class "package.module:Class"."""
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, which cannot be imported ({error}); give package.module:Class, with the module on "
            "PYTHONPATH."
        ) from None


def check_stored_score(name: str, place: object) -> None:
    """Raise `UserError` where the file `place` names a score whose module is not imported: files from elsewhere run no code."""
    module = name.partition(":")[0]
    if ":" in name and module not in sys.modules:
        raise UserError(
            f"MODEL.SLIM_SCORE of {place} is {name!r}, whose module is not imported, and a file imports none by "
            f"itself; give MODEL.SLIM_SCORE {name} on the command line, or import {module} before."
        )


def check_cfg(cfg: CfgNode) -> None:
    """Raise `UserError` for the first combination of values that cannot run."""
    for sentence in _mistakes(cfg):
        raise UserError(sentence)


def check_stage_keys(model: CfgNode) -> None:
    """Raise `UserError` where MODEL.SLIM_BLOCKS and MODEL.SLIM_KEEP do not fit each other."""
    for sentence in _stage_mistakes(model):
        raise UserError(sentence)


def _mistakes(cfg: CfgNode) -> Iterator[str]:
    model, miss = cfg.MODEL, cfg.TEST.MISS
    if model.ATM and not model.HDM:
        yield "MODEL.ATM is True and MODEL.HDM False, which makes its inputs; set MODEL.HDM to True or MODEL.ATM to False."
    if model.SDTPS_GUMBEL_SELECT and not model.SDTPS_USE_GUMBEL:
        yield "MODEL.SDTPS_GUMBEL_SELECT is True and MODEL.SDTPS_USE_GUMBEL False, which draws its noise; make them equal."
    if model.IF_WITH_CENTER == "yes" and "center" not in model.METRIC_LOSS_TYPE:
        yield (
            f"MODEL.IF_WITH_CENTER is 'yes', but MODEL.METRIC_LOSS_TYPE {model.METRIC_LOSS_TYPE!r} has no center loss; set "
            "it to 'triplet_center', or IF_WITH_CENTER to 'no'."
        )
    yield from _stage_mistakes(model)
    yield from _batch_mistakes(cfg)
    test, train = cfg.INPUT.SIZE_TEST, cfg.INPUT.SIZE_TRAIN
    if test != train:
        yield f"INPUT.SIZE_TEST is {test} and INPUT.SIZE_TRAIN {train}; make them equal."
    name = model.TRANSFORMER_TYPE
    for key in ("PATCH_SIZE", "DEPTH"):
        if model[key] and (name == CLIP_BACKBONE or model.PRETRAIN_PATH_T == HUB):
            yield f"MODEL.{key} is {model[key]}, but {name} with its published weights has one of its own; set it to 0."
    if cfg.TEST.CROSS_MODAL and (cfg.TEST.RE_RANKING == "yes" or miss not in ("None", "nothing")):
        yield "TEST.CROSS_MODAL is True, which compares all cases without re-ranking; leave TEST.MISS and TEST.RE_RANKING out."
    if miss in MISSING_CASES and not set(miss) < {name[0].lower() for name in model.MODALITIES}:
        yield f"TEST.MISS is {miss!r}, but MODEL.MODALITIES is {model.MODALITIES}; leave out some of these and not all."


def _stage_mistakes(model: CfgNode) -> Iterator[str]:
    blocks, keep = model.SLIM_BLOCKS, model.SLIM_KEEP
    if len(blocks) != len(keep):
        yield f"MODEL.SLIM_BLOCKS is {blocks} and MODEL.SLIM_KEEP {keep}; give one share for each block."
    if blocks != (rising := sorted(set(blocks))):
        yield f"MODEL.SLIM_BLOCKS is {blocks}, but it must be strictly increasing; write {rising}."


def _batch_mistakes(cfg: CfgNode) -> Iterator[str]:
    batch, instances = cfg.SOLVER.IMS_PER_BATCH, cfg.DATALOADER.NUM_INSTANCE
    if batch < 2:
        yield "SOLVER.IMS_PER_BATCH is 1, but BatchNorm needs two or more; raise it."
    if cfg.DATALOADER.SAMPLER == "softmax":
        return
    if instances == 1 and "triplet" in cfg.MODEL.METRIC_LOSS_TYPE:
        yield "DATALOADER.NUM_INSTANCE is 1, so the triplet loss finds no positive in a batch; set it to 2 or more."
    if batch % instances:
        multiple = max(2, round(batch / instances)) * instances
        yield (
            f"SOLVER.IMS_PER_BATCH is {batch}, which DATALOADER.NUM_INSTANCE {instances} does not divide; set it to a multiple "
            f"such as {multiple}."
        )
    if batch == instances:
        yield (
            f"SOLVER.IMS_PER_BATCH and DATALOADER.NUM_INSTANCE are both {batch}, so the triplet loss has no negative; set "
            "IMS_PER_BATCH to a larger multiple."
        )
