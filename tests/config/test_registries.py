"""Every name of a score and of a backbone has its class, and config/ knows which scores read masks."""

import pytest

from demo_sdtps.config import UserError
from demo_sdtps.config.check import WITH_MASKS
from demo_sdtps.modeling.backbones import TIMM_MODULES, Backbone, backbone_class
from vit_slim.scores import SCORES, score_class
from vit_slim.scores.base import Score


def test_scores():
    classes = {name: score_class(name) for name in SCORES}
    assert all(issubclass(score, Score) for score in classes.values())
    assert [name for name, score in classes.items() if score.masks] == list(WITH_MASKS)


def test_backbones():
    assert backbone_class("ViT-B-16").__name__ == "CLIP"
    assert all(issubclass(kind, Backbone) for kind in TIMM_MODULES.values())
    with pytest.raises(
        UserError, match=r"VisionTransformer or Eva .* nearest is 'vit_base_patch16"
    ):
        backbone_class("vit_base_patch16_224x")
