"""Configuration: a schema of all keys, and the loading of a checked CfgNode from a file and the command line."""

from typing import TYPE_CHECKING

from demo_sdtps.config.common import MISSING_CASES, MODALITIES, RETURN_PATTERNS
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from demo_sdtps.config.load import get_cfg, load_cfg, with_values

__all__ = [
    "MISSING_CASES",
    "MODALITIES",
    "RETURN_PATTERNS",
    "UserError",
    "get_cfg",
    "load_cfg",
    "with_values",
]


def __getattr__(name: str) -> object:
    # Not at once: the plug-in needs yacs alone, loading fvcore too.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from demo_sdtps.config import load

    return getattr(load, name)
