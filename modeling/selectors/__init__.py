"""Token selectors: which patches of a triplet stay, and what becomes of them (docs/api.md, base.py).

A new selector is one file with a subclass of `base.Selector`, and one line in SELECTORS.
"""
from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.common import nearest

if TYPE_CHECKING:
    from demo_sdtps.modeling.selectors.base import Selector

SELECTORS = {
    "sdtps": "demo_sdtps.modeling.selectors.sdtps:SDTPS",
    "sdtps_1e10": "demo_sdtps.modeling.selectors.sdtps_variants:SDTPS1e10",
    "sdtps_centred": "demo_sdtps.modeling.selectors.sdtps_variants:CentredSDTPS",
    "sdtps_projected": "demo_sdtps.modeling.selectors.sdtps_variants:ProjectedSDTPS",
}
"""MODEL.SELECTOR → module:class. The name is also that of the selector's weights and of its head in checkpoints."""


def selector_name(cfg: CfgNode) -> str:
    """The configured selector, '' for none; MODEL.USE_SDTPS is DeMo's way to ask for 'sdtps'."""
    return cfg.MODEL.SELECTOR or ("sdtps" if cfg.MODEL.USE_SDTPS else "")


def make_selector(cfg: CfgNode, width: int, grid: tuple[int, int]) -> Selector | None:
    """The configured selector for tokens of `width` channels on a grid of (rows, columns) patches, None for none.

    Raises `UserError` for an unknown name, or settings that the selector refuses.
    """
    name = selector_name(cfg)
    if not name:
        return None
    if name not in SELECTORS:
        raise UserError(f"MODEL.SELECTOR is {name!r}, but it must be {' or '.join(map(repr, SELECTORS))}"
                        f"{nearest(name, SELECTORS)}.")
    return resolve_name(SELECTORS[name])(cfg, width, grid)
