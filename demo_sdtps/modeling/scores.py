"""The score of patches that MODEL.SLIM_SCORE names; apart from demo.py because the plug-in, without timm, makes it too."""

from collections.abc import Sequence
from pkgutil import resolve_name

from yacs.config import CfgNode

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.runtime.errors import UserError, nearest_name
from vit_slim.scores import SCORES
from vit_slim.stage import Grid, Score


def make_score(
    name: str, cfg: CfgNode, width: int, grid: Grid, modalities: Sequence[str] = MODALITIES
) -> Score:
    """The score `name`, one of SCORES or "package.module:Class" of the user's own, for tokens of `width` channels on a grid of
    (rows, columns) patches, with the settings of `cfg`. Raises `UserError` for a name that is no score's."""
    reason = ""
    try:
        kind = SCORES.get(name) or (resolve_name(name) if ":" in name else None)
    except (ImportError, AttributeError, ValueError) as error:
        kind, reason = None, f" ({error})"
    if not (isinstance(kind, type) and issubclass(kind, Score)):
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}{reason}, but it must be {' or '.join(map(repr, SCORES))}, or package.module:Class, "
            f"a subclass of vit_slim.Score in a module on PYTHONPATH{nearest_name(name, SCORES)}."
        )
    return kind(width, grid, names=modalities, keep=tuple(cfg.MODEL.SLIM_KEEP))
