"""The model: backbone, PIFE, scores, slimming, SDTPS, HDM and ATMoE, heads; its losses and the names of its weights."""

from typing import TYPE_CHECKING

from demo_sdtps.lazy import lazy_names

if TYPE_CHECKING:
    from demo_sdtps.modeling.demo import DeMo, make_model

__all__ = ["DeMo", "make_model"]

__getattr__, __dir__ = lazy_names(__name__, {"modeling.demo": ["DeMo", "make_model"]})
