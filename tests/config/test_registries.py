"""The names that config/ has without torch are those of the registries beside the classes."""

from demo_sdtps.config.backbones import KINDS
from demo_sdtps.config.scores import SCORES as NAMES
from demo_sdtps.config.scores import WITH_MASKS
from demo_sdtps.modeling.backbones import BACKBONES
from demo_sdtps.modeling.slimming.scores import SCORES


def test_scores():
    assert tuple(SCORES) == NAMES
    assert [name for name, score in SCORES.items() if score.masks] == list(WITH_MASKS)


def test_backbones():
    assert tuple(BACKBONES) == KINDS
