"""Configuration: a schema of all keys, and the loading of a checked CfgNode from a file and the command line."""

from demo_sdtps.config.common import MODALITIES, RETURN_PATTERNS
from demo_sdtps.config.load import get_cfg, load_cfg, with_values
from demo_sdtps.runtime.errors import UserError

__all__ = ["MODALITIES", "RETURN_PATTERNS", "UserError", "get_cfg", "load_cfg", "with_values"]
