"""Every name of a backbone has its class."""

import pytest

from demo_sdtps.config import UserError
from demo_sdtps.modeling.backbones import TIMM_MODULES, Backbone, backbone_class


def test_backbones():
    assert backbone_class("ViT-B-16").__name__ == "CLIP"
    assert all(issubclass(kind, Backbone) for kind in TIMM_MODULES.values())
    with pytest.raises(
        UserError, match=r"VisionTransformer or Eva .* nearest is 'vit_base_patch16"
    ):
        backbone_class("vit_base_patch16_224x")
