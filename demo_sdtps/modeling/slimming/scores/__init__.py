"""Scores of patches, by which slimming and SDTPS keep the best (docs/develop.md, base.py).

A new score is one file with a subclass of `base.Score` and a line in SCORES; from outside the project its name is
"package.module:Class".
"""

from collections.abc import Sequence
from inspect import signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.config.scores import import_score
from demo_sdtps.modeling.modalities import Grid
from demo_sdtps.modeling.slimming.scores.base import Score
from demo_sdtps.runtime.errors import UserError, nearest_name

if TYPE_CHECKING:
    from yacs.config import CfgNode

SCORES = {
    "distinctness": "distinctness:Distinctness",
    "saliency": "saliency:Saliency",
    "sdtps": "sdtps:SDTPSScore",
    "supervised": "supervised:Supervised",
    "self_supervised": "supervised:SelfSupervised",
}
"""By name: the file here, and its class."""
SETTINGS = ("keep", "modalities", "beta", "loss_weight")
"""What the constructor of a score is given by name, after the tokens' width and the grid."""


def score_class(name: str) -> type[Score]:
    """The class that MODEL.SLIM_SCORE names; `UserError` for one of the user's that is no score."""
    if name in SCORES:
        return resolve_name(f"{__name__}.{SCORES[name]}")
    if ":" not in name:
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, but it must be {' or '.join(map(repr, SCORES))}, or package.module:Class of your "
            f"own{nearest_name(name, SCORES)}."
        )
    score = import_score(name)
    if not (isinstance(score, type) and issubclass(score, Score)):
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, which is no score; give a subclass of {Score.__module__}.Score."
        )
    try:
        signature(score).bind("width", "grid", **dict.fromkeys(SETTINGS))
    except TypeError as error:
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, whose constructor cannot be given width, grid, and by name {', '.join(SETTINGS)} "
            f"({error}); take those that it reads, and the others as **settings (docs/develop.md)."
        ) from None
    return score


def make_score(
    name: str, cfg: "CfgNode", width: int, grid: Grid, modalities: Sequence[str] = MODALITIES
) -> Score:
    """The score `name` for tokens of `width` channels on a grid of (rows, columns) patches, with the settings of `cfg`."""
    model = cfg.MODEL
    settings = {"keep": tuple(model.SLIM_KEEP), "modalities": modalities}
    weights = {"beta": model.SDTPS_BETA, "loss_weight": model.SLIM_LOSS_WEIGHT}
    return score_class(name)(width, grid, **settings, **weights)
