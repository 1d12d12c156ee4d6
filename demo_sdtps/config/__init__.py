"""Configuration: a schema of all keys, and the loading of a checked CfgNode from a file and the command line."""

from typing import TYPE_CHECKING

from demo_sdtps.config.common import MISSING_CASES, MODALITIES, RETURN_PATTERNS
from demo_sdtps.lazy import lazy_names
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

__getattr__, __dir__ = lazy_names(__name__, {"config.load": ["get_cfg", "load_cfg", "with_values"]})
