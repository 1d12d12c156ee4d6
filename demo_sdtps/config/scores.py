"""Which scores MODEL.SLIM_SCORE can name, where the class of each is, and which of them read masks."""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from demo_sdtps.runtime.errors import UserError, nearest

if TYPE_CHECKING:
    from yacs.config import CfgNode


class ScoreEntry(NamedTuple):
    place: str  # module:class
    masks: bool = False  # whether it reads foreground masks in training (docs/data.md)


_HERE = "demo_sdtps.modeling.slimming.scores"
SCORES = {
    "distinctness": ScoreEntry(f"{_HERE}.cues:Distinctness"),
    "saliency": ScoreEntry(f"{_HERE}.saliency:Saliency"),
    "sdtps": ScoreEntry(f"{_HERE}.guided:SDTPSScore"),
    "supervised": ScoreEntry(f"{_HERE}.supervised:Supervised", masks=True),
    "self_supervised": ScoreEntry(f"{_HERE}.supervised:SelfSupervised"),
}
"""Scores by name."""

MASK = "MASK"
"""Name of the foreground mask among the images of a triplet, and of its folder."""


def score_entry(name: str, key: str) -> ScoreEntry:
    """The entry of the score that `key` names: one of SCORES, or "package.module:Class" from outside the project, which is
    imported. Raises `UserError` for an unknown name."""
    if ":" in name and name not in SCORES:
        try:
            return ScoreEntry(
                name, resolve_name(name).masks
            )  # an `AttributeError` for another class
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(
                f"{key} is {name!r}, which cannot be imported as a score ({error}); give the module and a subclass "
                "of demo_sdtps.modeling.slimming.scores.base.Score, with the module on PYTHONPATH."
            ) from None
    if name not in SCORES:
        raise UserError(
            f"{key} is {name!r}, but it must be {' or '.join(map(repr, SCORES))}, or package.module:Class of your "
            f"own{nearest(name, SCORES)}."
        )
    return SCORES[name]


def check_stored_score(name: str, place: object) -> None:
    """Raise `UserError` where a checkpoint or folder at `place` names a score from outside the project whose module is not
    imported: files from elsewhere run no code."""
    module = name.partition(":")[0]
    if ":" in name and module not in sys.modules:
        raise UserError(
            f"MODEL.SLIM_SCORE of {place} is {name!r}, whose module is not imported, and a file imports none by "
            f"itself; give MODEL.SLIM_SCORE {name} on the command line, or import {module} before."
        )


def reads_masks(cfg: CfgNode) -> bool:
    """Whether the images of a triplet include its foreground mask in training."""
    return bool(
        cfg.MODEL.SLIM_BLOCKS and score_entry(cfg.MODEL.SLIM_SCORE, "MODEL.SLIM_SCORE").masks
    )
