"""The model: backbone, PIFE, token pruning, SDTPS, HDM and ATMoE, heads; its losses and the names of its weights."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demo_sdtps.modeling.demo import DeMo, make_model

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demo_sdtps.modeling.demo import DeMo, make_model

__all__ = ["DeMo", "make_model"]


def __getattr__(name: str) -> object:
    # Not at once: modeling.sdtps needs torch alone.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from demo_sdtps.modeling import demo

    return getattr(demo, name)
