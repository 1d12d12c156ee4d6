"""Every name of a score and of a backbone has its class."""

import pytest

from demo_sdtps.config import UserError
from demo_sdtps.modeling.backbones import TIMM_MODULES, Backbone, backbone_class
from vit_slim.scores import SCORES, score_class
from vit_slim.scores.base import Score


def test_scores():
    assert all(issubclass(score_class(name), Score) for name in SCORES)


def test_backbones():
    assert backbone_class("ViT-B-16").__name__ == "CLIP"
    assert all(issubclass(kind, Backbone) for kind in TIMM_MODULES.values())
    with pytest.raises(
        UserError, match=r"VisionTransformer or Eva .* nearest is 'vit_base_patch16"
    ):
        backbone_class("vit_base_patch16_224x")
