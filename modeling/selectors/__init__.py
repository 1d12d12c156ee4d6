"""Registry of token selectors, which choose the patch tokens to keep and merge (docs/api.md, base.py), and scores of patches.

A new selector is one file with a subclass of `base.Selector`, and one line in SELECTORS; a new score is one file with a
subclass of `base.Score`, and one line in config/scores.py.
"""
from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import nearest
from demo_sdtps.config.scores import SCORES

if TYPE_CHECKING:
    from demo_sdtps.modeling.selectors.base import Score, Selector

SELECTORS = {
    "sdtps": "demo_sdtps.modeling.selectors.sdtps:SDTPS",
    "sdtps_1e10": "demo_sdtps.modeling.selectors.sdtps_variants:SDTPS1e10",
    "sdtps_centred": "demo_sdtps.modeling.selectors.sdtps_variants:CentredSDTPS",
}
"""MODEL.SELECTOR → module:class. The name is also that of the selector's weights and of its head in checkpoints."""


OTHER_PARTS = ("backbone", "slimming", "pife", "hdm", "atmoe", "heads", "moe", "original", *MODALITIES)
"""Names of the model's other parts and features."""


def selector_name(cfg: CfgNode) -> str:
    """The configured selector, '' for none; MODEL.USE_SDTPS means 'sdtps'. Raises `UserError` for an unknown name."""
    name = cfg.MODEL.SELECTOR or ("sdtps" if cfg.MODEL.USE_SDTPS else "")
    if name and name not in SELECTORS:
        raise UserError(f"MODEL.SELECTOR is {name!r}, but it must be {' or '.join(map(repr, SELECTORS))}"
                        f"{nearest(name, SELECTORS)}.")
    return name


def make_selector(cfg: CfgNode, width: int, grid: tuple[int, int]) -> Selector | None:
    """The configured selector for tokens of `width` channels on a grid of (rows, columns) patches, None for none.

    Raises `UserError` for an unknown name and for settings that the selector rejects, `ValueError` for a selector that is
    registered under the name of another part of the model.
    """
    name = selector_name(cfg)
    if name in OTHER_PARTS:
        raise ValueError(f"The selector {name!r} has the name of another part of the model; register it under another name.")
    return resolve_name(SELECTORS[name])(cfg, width, grid) if name else None


def make_score(name: str, cfg: CfgNode, width: int, grid: tuple[int, int]) -> Score:
    """The score `name` of config/scores.py for tokens of `width` channels on a grid of (rows, columns) patches.

    Raises `UserError` for settings that the score rejects.
    """
    return resolve_name(f"{__name__}.{SCORES[name].place.replace('.', ':')}")(cfg, width, grid)
