"""Multi-modal re-identification: DeMo, and SDTPS, which selects and aggregates its patch tokens. docs/api.md has the names.

A name here is imported when it is first asked for, so that demo_sdtps.modeling.sdtps needs torch alone.
"""

from typing import TYPE_CHECKING

from demo_sdtps.lazy import lazy_names

if TYPE_CHECKING:
    from demo_sdtps.config.load import get_cfg, load_cfg
    from demo_sdtps.modeling.demo import make_model
    from demo_sdtps.modeling.losses import distill_loss
    from demo_sdtps.modeling.sdtps import MultiModalSDTPS
    from demo_sdtps.modeling.slimming.slim import slim, slim_loss, unslim
    from demo_sdtps.plug_in.hosts import add_config
    from demo_sdtps.plug_in.patch import patch
    from demo_sdtps.retrieval.extractor import Extractor
    from demo_sdtps.retrieval.features import Features
    from demo_sdtps.retrieval.load import load
    from demo_sdtps.training.reid import train

__all__ = [
    "Extractor",
    "Features",
    "MultiModalSDTPS",
    "add_config",
    "distill_loss",
    "get_cfg",
    "load",
    "load_cfg",
    "make_model",
    "patch",
    "slim",
    "slim_loss",
    "train",
    "unslim",
]

__version__ = "0.2.0"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "modeling.sdtps": ["MultiModalSDTPS"],
        "modeling.demo": ["make_model"],
        "modeling.losses": ["distill_loss"],
        "modeling.slimming.slim": ["slim", "slim_loss", "unslim"],
        "config.load": ["get_cfg", "load_cfg"],
        "retrieval.extractor": ["Extractor"],
        "retrieval.features": ["Features"],
        "retrieval.load": ["load"],
        "training.reid": ["train"],
        "plug_in.hosts": ["add_config"],
        "plug_in.patch": ["patch"],
    },
)
