"""Scores of patches, by which slimming and SDTPS keep the best (docs/extending.md, base.py).

A new score is one file with a subclass of `base.Score` and a line in config/scores.py; from outside the project its name is
"package.module:Class".
"""

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.config.scores import SCORES, check_score
from demo_sdtps.modeling.modalities import Grid
from demo_sdtps.modeling.slimming.scores.base import Score

if TYPE_CHECKING:
    from yacs.config import CfgNode


def score_class(name: str) -> type[Score]:
    """The class that MODEL.SLIM_SCORE names."""
    return resolve_name(f"{__name__}.{SCORES[name]}" if name in SCORES else name)


def make_score(
    name: str, cfg: "CfgNode", width: int, grid: Grid, modalities: Sequence[str] = MODALITIES
) -> Score:
    """The score `name` for tokens of `width` channels on a grid of (rows, columns) patches, with the settings of `cfg`."""
    check_score(name, "MODEL.SLIM_SCORE")
    model = cfg.MODEL
    settings = {"keep": tuple(model.SLIM_KEEP), "modalities": modalities}
    weights = {"beta": model.SDTPS_BETA, "loss_weight": model.SLIM_LOSS_WEIGHT}
    return score_class(name)(width, grid, **settings, **weights)
