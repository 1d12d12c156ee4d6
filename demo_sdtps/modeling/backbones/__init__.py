"""Backbones: a file for each architecture, a line for each kind of config/backbones.py."""

from yacs.config import CfgNode

from demo_sdtps.config.backbones import backbone_kind
from demo_sdtps.config.common import CLIP_BACKBONE
from demo_sdtps.modeling.backbones.base import Backbone
from demo_sdtps.modeling.backbones.clip import CLIP
from demo_sdtps.modeling.backbones.eva import EvaViT
from demo_sdtps.modeling.backbones.vit import ViT

__all__ = ["BACKBONES", "Backbone", "make_backbone"]

BACKBONES: dict[str, type[Backbone]] = {
    CLIP_BACKBONE: CLIP,
    "vision_transformer": ViT,
    "deit": ViT,
    "eva": EvaViT,
}
"""Backbones by kind: CLIP's image encoder, or the module of timm that defines the model."""


def make_backbone(cfg: CfgNode, camera_num: int) -> Backbone:
    """The backbone of MODEL.TRANSFORMER_TYPE, randomly initialised."""
    return BACKBONES[backbone_kind(cfg.MODEL.TRANSFORMER_TYPE)](cfg, camera_num)
