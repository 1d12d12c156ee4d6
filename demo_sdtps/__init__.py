"""Multi-modal re-identification: DeMo, and SDTPS, which selects and aggregates its patch tokens. docs/api.md has the names.

A name here is imported when it is first asked for, so that demo_sdtps.modeling.sdtps needs torch alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demo_sdtps.config.load import get_cfg as get_cfg
    from demo_sdtps.config.load import load_cfg as load_cfg
    from demo_sdtps.modeling.demo import make_model as make_model
    from demo_sdtps.modeling.losses import distill_loss as distill_loss
    from demo_sdtps.modeling.losses import feature_distill_loss as feature_distill_loss
    from demo_sdtps.modeling.sdtps import MultiModalSDTPS as MultiModalSDTPS
    from demo_sdtps.plug_in.hosts import add_config as add_config
    from demo_sdtps.plug_in.patch import patch as patch
    from demo_sdtps.retrieval.features import Features as Features
    from demo_sdtps.retrieval.reid import Extractor as Extractor
    from demo_sdtps.retrieval.reid import load as load
    from demo_sdtps.training.reid import train as train
    from vit_slim import UserError as UserError
    from vit_slim import slim as slim
    from vit_slim import slim_loss as slim_loss
    from vit_slim import unslim as unslim

__version__ = "0.3.0"

MODULES = {
    "Extractor": "demo_sdtps.retrieval.reid",
    "Features": "demo_sdtps.retrieval.features",
    "MultiModalSDTPS": "demo_sdtps.modeling.sdtps",
    "UserError": "vit_slim",
    "add_config": "demo_sdtps.plug_in.hosts",
    "distill_loss": "demo_sdtps.modeling.losses",
    "feature_distill_loss": "demo_sdtps.modeling.losses",
    "get_cfg": "demo_sdtps.config.load",
    "load": "demo_sdtps.retrieval.reid",
    "load_cfg": "demo_sdtps.config.load",
    "make_model": "demo_sdtps.modeling.demo",
    "patch": "demo_sdtps.plug_in.patch",
    "slim": "vit_slim",
    "slim_loss": "vit_slim",
    "train": "demo_sdtps.training.reid",
    "unslim": "vit_slim",
}

__all__ = [*MODULES]


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
