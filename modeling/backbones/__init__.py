"""Backbones: a file for each architecture, a line for each in config/backbones.py."""
from importlib import import_module

from yacs.config import CfgNode

from demo_sdtps.config.backbones import backbone_class
from demo_sdtps.modeling.backbones.base import Backbone

__all__ = ["Backbone", "make_backbone"]


def make_backbone(cfg: CfgNode, camera_num: int) -> Backbone:
    """The backbone of MODEL.TRANSFORMER_TYPE, randomly initialised. Raises `UserError` where it does not fit."""
    file, _, name = backbone_class(cfg.MODEL.TRANSFORMER_TYPE).partition(".")
    return getattr(import_module(f"{__name__}.{file}"), name)(cfg, camera_num)
