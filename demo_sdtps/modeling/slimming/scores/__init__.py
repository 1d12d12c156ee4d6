"""Scores of patches, by which slimming and SDTPS keep the best (docs/extending.md, base.py).

A new score is one file with a subclass of `base.Score`, a line in SCORES, and its name in config/scores.py; from outside the
project its name is "package.module:Class".
"""

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.config.scores import check_score
from demo_sdtps.modeling.slimming.scores.base import Score
from demo_sdtps.modeling.slimming.scores.distinctness import Distinctness
from demo_sdtps.modeling.slimming.scores.saliency import Saliency
from demo_sdtps.modeling.slimming.scores.sdtps import SDTPSScore
from demo_sdtps.modeling.slimming.scores.supervised import SelfSupervised, Supervised

if TYPE_CHECKING:
    from yacs.config import CfgNode

SCORES: dict[str, type[Score]] = {
    "distinctness": Distinctness,
    "saliency": Saliency,
    "sdtps": SDTPSScore,
    "supervised": Supervised,
    "self_supervised": SelfSupervised,
}
"""Scores by the names of MODEL.SLIM_SCORE."""


def make_score(
    name: str,
    cfg: "CfgNode",
    width: int,
    grid: tuple[int, int],
    modalities: Sequence[str] = MODALITIES,
) -> Score:
    """The score `name` for tokens of `width` channels on a grid of (rows, columns) patches, with the settings of `cfg`."""
    check_score(name, "MODEL.SLIM_SCORE")
    score, model = SCORES[name] if name in SCORES else resolve_name(name), cfg.MODEL
    settings = {"keep": tuple(model.SLIM_KEEP), "modalities": modalities}
    weights = {"beta": model.SDTPS_BETA, "loss_weight": model.SLIM_LOSS_WEIGHT}
    return score(width, grid, **settings, **weights)
