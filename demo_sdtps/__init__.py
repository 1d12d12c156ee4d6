"""Multi-modal re-identification: DeMo, and SDTPS, which selects and aggregates its patch tokens. docs/api.md has the names.

The parts stand at the top of a checkout (config, datasets, modeling, training, …), linked into this folder, and are imported as
demo_sdtps.config and so on. A name here is imported when it is first asked for, so that demo_sdtps.modeling.sdtps needs torch
alone.
"""
from pathlib import Path
from typing import TYPE_CHECKING

from demo_sdtps.lazy import lazy_names

if TYPE_CHECKING:
    from demo_sdtps.config import get_cfg, load_cfg
    from demo_sdtps.modeling import make_model
    from demo_sdtps.modeling.sdtps import MultiModalSDTPS
    from demo_sdtps.modeling.slim import slim, slim_loss, unslim
    from demo_sdtps.plug_in.config import add_config
    from demo_sdtps.plug_in.patch import patch
    from demo_sdtps.retrieval.extractor import Extractor, load

__all__ = ["Extractor", "MultiModalSDTPS", "add_config", "get_cfg", "load", "load_cfg", "make_model", "patch",
           "slim", "slim_loss", "unslim"]

__version__ = "0.1.0"

# A checkout without symbolic links (git on Windows) has small text files in their place, which must not be found first.
_folder = Path(__file__).resolve().parent
if not (_folder / "modeling").is_dir() and (_folder.parent / "modeling" / "sdtps.py").exists():
    __path__.insert(0, str(_folder.parent))

__getattr__ = lazy_names(__name__, {
    "modeling.sdtps": ["MultiModalSDTPS"], "modeling.demo": ["make_model"], "modeling.slim": ["slim", "slim_loss", "unslim"],
    "config.load": ["get_cfg", "load_cfg"], "retrieval.extractor": ["Extractor", "load"],
    "plug_in.config": ["add_config"], "plug_in.patch": ["patch"]})
