"""Backbones: a file for each architecture, by MODEL.TRANSFORMER_TYPE."""

from pkgutil import resolve_name

from yacs.config import CfgNode

from demo_sdtps.config.common import CLIP_BACKBONE
from demo_sdtps.modeling.backbones.base import Backbone
from demo_sdtps.runtime.errors import UserError, nearest_name

__all__ = ["Backbone", "make_backbone"]

CLIP = "clip:CLIP"
TIMM_MODULES = {"vision_transformer": "vit:ViT", "deit": "vit:ViT", "eva": "eva:EvaViT"}
"""By the module of timm that defines a model: the file here, and its class."""


def backbone_class(name: str) -> str:
    """The file here, and its class, of a MODEL.TRANSFORMER_TYPE, as file:class."""
    if name == CLIP_BACKBONE:
        return CLIP
    import timm  # a slow import, which CLIP's configurations do without

    known = {
        model: place
        for module, place in TIMM_MODULES.items()
        for model in timm.list_models(module=module)
    }
    if name not in known:
        raise UserError(
            f"MODEL.TRANSFORMER_TYPE is {name!r}, but it must be {CLIP_BACKBONE!r} or a VisionTransformer or Eva "
            f"of timm such as 'vit_base_patch16_224'{nearest_name(name, [CLIP_BACKBONE, *known])}."
        )
    return known[name]


def make_backbone(cfg: CfgNode, camera_num: int) -> Backbone:
    """The backbone of MODEL.TRANSFORMER_TYPE, randomly initialised."""
    backbone = resolve_name(f"{__name__}.{backbone_class(cfg.MODEL.TRANSFORMER_TYPE)}")
    return backbone(cfg, camera_num)
