"""What the configuration says of foreground masks and of scores of the user's; without torch, for --help."""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

MASK = "MASK"
"""Name of the foreground mask among the images of a triplet, and of its folder."""
WITH_MASKS = ("supervised",)
"""Values of MODEL.SLIM_SCORE that read foreground masks in training (docs/train.md)."""


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


def reads_masks(cfg: CfgNode) -> bool:
    """Whether the images of a triplet include its foreground mask in training."""
    name = cfg.MODEL.SLIM_SCORE
    if not cfg.MODEL.SLIM_BLOCKS:
        return False
    return getattr(import_score(name), "masks", False) if ":" in name else name in WITH_MASKS
