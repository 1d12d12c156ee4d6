"""The configuration: a schema of every key, and the way from a file and the command line to a checked CfgNode."""
from config.common import MODALITIES, RETURN_PATTERNS, UserError
from config.load import get_cfg, load_cfg

__all__ = ["MODALITIES", "RETURN_PATTERNS", "UserError", "get_cfg", "load_cfg"]
