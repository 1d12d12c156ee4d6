"""What config/ knows of scores and backbones without torch is true of the classes."""

from pkgutil import resolve_name

from demo_sdtps.config.backbones import TIMM_MODULES, backbone_class
from demo_sdtps.config.scores import SCORES, WITH_MASKS
from demo_sdtps.modeling.backbones import Backbone
from demo_sdtps.modeling.slimming.scores import score_class
from demo_sdtps.modeling.slimming.scores.base import Score


def test_scores():
    classes = {name: score_class(name) for name in SCORES}
    assert all(issubclass(score, Score) for score in classes.values())
    assert [name for name, score in classes.items() if score.masks] == list(WITH_MASKS)


def test_backbones():
    for place in (backbone_class("ViT-B-16"), *TIMM_MODULES.values()):
        assert issubclass(resolve_name(f"demo_sdtps.modeling.backbones.{place}"), Backbone)
