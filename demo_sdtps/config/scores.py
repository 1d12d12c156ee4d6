"""Which scores MODEL.SLIM_SCORE can name, and which of them read masks; without torch, for --help."""

import sys
from inspect import signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING

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
"""By name: file in modeling/slimming/scores, and class."""
WITH_MASKS = ("supervised",)
"""Those of them that read foreground masks in training (docs/data.md)."""

SETTINGS = ("keep", "modalities", "beta", "loss_weight")
"""What the constructor of a score is given by name, after the tokens' width and the grid."""

MASK = "MASK"
"""Name of the foreground mask among the images of a triplet, and of its folder."""


def check_score(name: str, key: str) -> None:
    """Raise `UserError` where the score that `key` names is neither one of SCORES nor "package.module:Class" of the user's."""
    if name in SCORES:
        return
    if ":" not in name:
        raise UserError(
            f"{key} is {name!r}, but it must be {' or '.join(map(repr, SCORES))}, or package.module:Class of your own"
            f"{nearest_name(name, SCORES)}."
        )
    try:
        score = resolve_name(name)
        score.masks  # noqa: B018 (an `AttributeError` for another class)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{key} is {name!r}, which cannot be imported as a score ({error}); give the module and a subclass "
            "of demo_sdtps.modeling.slimming.scores.base.Score, with the module on PYTHONPATH."
        ) from None
    try:
        signature(score).bind("width", "grid", **dict.fromkeys(SETTINGS))
    except TypeError as error:
        raise UserError(
            f"{key} is {name!r}, whose constructor cannot be given width, grid, and by name {', '.join(SETTINGS)} "
            f"({error}); take those that it reads, and the others as **settings (docs/extending.md)."
        ) from None


def score_reads_masks(name: str) -> bool:
    """Whether a score that `check_score` accepts reads foreground masks in training."""
    return name in WITH_MASKS if name in SCORES else bool(resolve_name(name).masks)


def check_stored_score(name: str, place: object) -> None:
    """Raise `UserError` where the file `place` names a score whose module is not imported: files from elsewhere run no code."""
    module = name.partition(":")[0]
    if ":" in name and module not in sys.modules:
        raise UserError(
            f"MODEL.SLIM_SCORE of {place} is {name!r}, whose module is not imported, and a file imports none by "
            f"itself; give MODEL.SLIM_SCORE {name} on the command line, or import {module} before."
        )


def reads_masks(cfg: "CfgNode") -> bool:
    """Whether the images of a triplet include its foreground mask in training."""
    return bool(cfg.MODEL.SLIM_BLOCKS) and score_reads_masks(cfg.MODEL.SLIM_SCORE)
