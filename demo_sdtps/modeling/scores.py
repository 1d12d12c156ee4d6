"""The score of patches that MODEL.SLIM_SCORE names."""

from collections.abc import Sequence

from yacs.config import CfgNode

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.config.keys import import_score
from demo_sdtps.runtime.errors import UserError, nearest_name
from vit_slim.scores import SCORES
from vit_slim.stage import Score
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
