"""Backbones by MODEL.TRANSFORMER_TYPE: CLIP's (clip.py), and those of timm (vit.py)."""

import timm
from yacs.config import CfgNode

from demo_sdtps.config.common import CLIP_BACKBONE
from demo_sdtps.modeling.backbones.clip import CLIP
from demo_sdtps.modeling.backbones.vit import Backbone, EvaViT
from demo_sdtps.runtime.errors import UserError, nearest_name

__all__ = ["Backbone", "make_backbone"]

TIMM_MODULES = {"vision_transformer": Backbone, "deit": Backbone, "eva": EvaViT}
"""By the module of timm that defines a model."""


def make_backbone(cfg: CfgNode, camera_num: int) -> Backbone:
    """The backbone of MODEL.TRANSFORMER_TYPE, randomly initialised. Raises `UserError` for another name."""
    name = cfg.MODEL.TRANSFORMER_TYPE
    if name == CLIP_BACKBONE:
        return CLIP(cfg, camera_num)
    for module, kind in TIMM_MODULES.items():
        if name in timm.list_models(name, module=module):  # a list of all takes milliseconds
            return kind(cfg, camera_num)
    known = [CLIP_BACKBONE, *timm.list_models(module=list(TIMM_MODULES))]
    raise UserError(
        f"MODEL.TRANSFORMER_TYPE is {name!r}, but it must be {CLIP_BACKBONE!r} or a VisionTransformer or Eva "
        f"of timm such as 'vit_base_patch16_224'{nearest_name(name, known)}."
    )
