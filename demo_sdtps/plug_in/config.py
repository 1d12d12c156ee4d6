"""The configuration keys of SDTPS and of slimming in DeMo's own CfgNode."""

from __future__ import annotations

from copy import copy

from yacs.config import CfgNode

from demo_sdtps.config.common import MISSING_CASES
from demo_sdtps.config.keys import KEYS
from demo_sdtps.runtime.errors import UserError

ADDED = {
    key.name.partition(".")[2]: key
    for key in KEYS
    if key.name.startswith(("MODEL.USE_SDTPS", "MODEL.SDTPS_", "MODEL.SLIM_"))
}
"""The schema's rows of SDTPS and of slimming, by their names in the section MODEL."""


def add_config(cfg: CfgNode) -> CfgNode:
    """Add the keys of SDTPS and of slimming with their defaults to DeMo's configuration, in place, before `merge_from_file`;
    → `cfg`.

    Keys that are there already keep their values.
    """
    if "MODEL" not in cfg:
        raise UserError(
            "The configuration has no section MODEL, so it is not DeMo's; give add_config DeMo's cfg."
        )
    if cfg.MODEL.is_frozen():
        raise UserError(
            "The configuration is frozen; call add_config before merge_from_file and freeze."
        )
    for name, key in ADDED.items():
        cfg.MODEL.setdefault(name, copy(key.default))
    return cfg


def check_values(cfg: CfgNode) -> None:
    """Raise `UserError` for a key of SDTPS or of slimming that is missing, or a value that makes no sense."""
    for name, key in ADDED.items():
        if name not in cfg.MODEL:
            raise UserError(
                f"The configuration has no key {key.name}; call demo_sdtps.add_config(cfg) before merge_from_file."
            )
        if callable(key.allowed) and not key.allowed(cfg.MODEL[name]):
            raise UserError(f"{key.name} is {cfg.MODEL[name]!r}; it must be {key.allowed_text}.")


def missing_letters(cfg: CfgNode) -> str:
    """First letters of the modalities that are missing in evaluation."""
    letters = cfg.TEST.get("MISS", "")
    return letters if letters in MISSING_CASES else ""
