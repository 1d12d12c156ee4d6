"""Which backbones MODEL.TRANSFORMER_TYPE can name, and where the class of each is."""

from demo_sdtps.config.common import CLIP_BACKBONE
from demo_sdtps.runtime.errors import UserError, nearest

NAMED = {CLIP_BACKBONE: "clip.CLIP"}  # backbones by name: file and class in modeling/backbones

TIMM_MODULES = {"vision_transformer": "vit.ViT", "deit": "vit.ViT", "eva": "eva.EvaViT"}
"""Backbones by the module of timm that defines them."""


def backbone_class(name: str) -> str:
    """File and class in modeling/backbones of a MODEL.TRANSFORMER_TYPE. Raises `UserError` for an unknown name."""
    if name in NAMED:
        return NAMED[name]
    import timm  # a slow import, which CLIP's configurations do without

    known = {
        model: names
        for module, names in TIMM_MODULES.items()
        for model in timm.list_models(module=module)
    }
    if name not in known:
        raise UserError(
            f"MODEL.TRANSFORMER_TYPE is {name!r}, but it must be {CLIP_BACKBONE!r} or a VisionTransformer or Eva "
            f"of timm such as 'vit_base_patch16_224'{nearest(name, [*NAMED, *known])}."
        )
    return known[name]
