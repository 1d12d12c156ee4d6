"""Backbones: a file for each architecture, by config/backbones.py."""

from pkgutil import resolve_name

from yacs.config import CfgNode

from demo_sdtps.config.backbones import backbone_class
from demo_sdtps.modeling.backbones.base import Backbone

__all__ = ["Backbone", "make_backbone"]


def make_backbone(cfg: CfgNode, camera_num: int) -> Backbone:
    """The backbone of MODEL.TRANSFORMER_TYPE, randomly initialised."""
    backbone = resolve_name(f"{__name__}.{backbone_class(cfg.MODEL.TRANSFORMER_TYPE)}")
    return backbone(cfg, camera_num)
