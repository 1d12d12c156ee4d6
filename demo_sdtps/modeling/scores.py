"""The score of patches that MODEL.SLIM_SCORE names, and scores in half precision."""

import copy
from collections.abc import Sequence

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config.check import import_score
from demo_sdtps.config.common import MODALITIES
from demo_sdtps.runtime.errors import UserError, nearest_name
from vit_slim.scores import SCORES, is_cast
from vit_slim.stage import Score, Slimming
from vit_slim.state import Grid


def make_score(
    name: str, cfg: CfgNode, width: int, grid: Grid, modalities: Sequence[str] = MODALITIES
) -> Score:
    """The score `name`, one of SCORES or "package.module:Class" of the user's own, for tokens of `width` channels on a grid of
    (rows, columns) patches, with the settings of `cfg`. Raises `UserError` for a name that is no score's."""
    if name not in SCORES and ":" not in name:
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, but it must be {' or '.join(map(repr, SCORES))}, or package.module:Class of your "
            f"own{nearest_name(name, SCORES)}."
        )
    kind = SCORES.get(name) or import_score(name)
    if not (isinstance(kind, type) and issubclass(kind, Score)):
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, which is no score; give a subclass of vit_slim.Score."
        )
    settings = {"keep": tuple(cfg.MODEL.SLIM_KEEP), "loss_weight": cfg.MODEL.SLIM_LOSS_WEIGHT}
    try:
        return kind(width, grid, modalities=modalities, **settings)
    except TypeError as error:
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, whose constructor cannot be given width, grid, and by name modalities, keep and "
            f"loss_weight ({error}); take those that it reads, and the others as **settings (docs/develop.md)."
        ) from None


def cast_scores(slimming: Slimming, precision: torch.dtype) -> Slimming:
    """The same stages with copies of the scores that hold the weights which autocast would cast at every forward in
    `precision`; a score that may compute outside autocast is itself."""
    scores = [copy.deepcopy(each) if is_cast(each) else each for each in slimming.scores]
    for module in (module for each in scores if is_cast(each) for module in each.modules()):
        if isinstance(module, nn.Linear):
            module.to(precision)
    settings = slimming.blocks, slimming.keep, scores, slimming.merge, slimming.shared
    return Slimming(*settings).train(slimming.training)
