"""Which backbones MODEL.TRANSFORMER_TYPE can name; without timm where CLIP is named."""

from demo_sdtps.config.common import CLIP_BACKBONE
from demo_sdtps.runtime.errors import UserError, nearest_name

TIMM_MODULES = ("vision_transformer", "deit", "eva")
"""Modules of timm whose models are backbones."""
KINDS = (CLIP_BACKBONE, *TIMM_MODULES)
"""Kinds of backbones, whose classes are in modeling/backbones."""


def backbone_kind(name: str) -> str:
    """The one of KINDS that a MODEL.TRANSFORMER_TYPE is of."""
    if name == CLIP_BACKBONE:
        return name
    import timm  # a slow import, which CLIP's configurations do without

    known = {model: module for module in TIMM_MODULES for model in timm.list_models(module=module)}
    if name not in known:
        raise UserError(
            f"MODEL.TRANSFORMER_TYPE is {name!r}, but it must be {CLIP_BACKBONE!r} or a VisionTransformer or Eva "
            f"of timm such as 'vit_base_patch16_224'{nearest_name(name, [CLIP_BACKBONE, *known])}."
        )
    return known[name]
