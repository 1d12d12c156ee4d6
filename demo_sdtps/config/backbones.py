"""Which backbones MODEL.TRANSFORMER_TYPE can name; without timm where CLIP is named."""

from demo_sdtps.config.common import CLIP_BACKBONE
from demo_sdtps.runtime.errors import UserError, nearest_name

TIMM_MODULES = {"vision_transformer": "vit:ViT", "deit": "vit:ViT", "eva": "eva:EvaViT"}
"""By the module of timm that defines a model: file in modeling/backbones, and class."""


def backbone_class(name: str) -> str:
    """File in modeling/backbones and class of a MODEL.TRANSFORMER_TYPE, as file:class."""
    if name == CLIP_BACKBONE:
        return "clip:CLIP"
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
