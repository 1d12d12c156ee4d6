"""Scores of patches, by which slimming and SDTPS keep the best (docs/extending.md, base.py; the registry is config/scores.py).

A new score is one file with a subclass of `base.Score`, and one line in the registry; from outside the project its name is
"package.module:Class".
"""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.config.scores import score_entry

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from demo_sdtps.modeling.slimming.scores.base import Score


def make_score(
    name: str,
    cfg: CfgNode,
    width: int,
    grid: tuple[int, int],
    modalities: Sequence[str] = MODALITIES,
) -> Score:
    """The score `name` for tokens of `width` channels on a grid of (rows, columns) patches, with the settings of `cfg`.

    Raises `UserError` for an unknown name and for settings that the score rejects.
    """
    model = cfg.MODEL
    settings = {
        "keep": tuple(model.SLIM_KEEP),
        "beta": model.SDTPS_BETA,
        "loss_weight": model.SLIM_LOSS_WEIGHT,
        "modalities": modalities,
    }
    return resolve_name(score_entry(name, "MODEL.SLIM_SCORE").place)(width, grid, **settings)
