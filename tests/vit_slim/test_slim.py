"""demo_sdtps.slim on tiny models of every library beside a slow version: values, gradients, all kept, taken off again."""

import copy
import math

import pytest
import timm
import torch
from learned import Learned
from slim_models import (
    CASES,
    WIDTH,
    by_saliency,
    compare,
    learned,
    probe_gradients,
    slim_both,
    transformers_model,
)

import demo_sdtps
from demo_sdtps.config import UserError
from demo_sdtps.evaluation.operations import total_macs

pytestmark = pytest.mark.numeric


SLOW = ("timm, registers", "timm, DINOv3", "CLIP's vision", "DINOv2, registers", "DeiT")


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def case(request):
    return CASES[request.param]


def test_values_and_gradients_are_those_of_the_slow_version(case):
    compare(case, "saliency", (1, 2), (0.6, 0.5), by_saliency(case))


@pytest.mark.parametrize("merge", [True, False])
def test_by_a_score_with_weights(merge):
    """Its gradient goes through the weights of the extra tokens, and with `merge` alone there is one."""
    slow_score = lambda model, images: learned(model.slimming)  # noqa: E731
    learns = compare(CASES["ViT"], Learned, (1, 2), (0.6, 0.5), slow_score, merge=merge)
    assert learns == merge


def test_keeping_all_is_the_dense_model(case):
    """Where no token is dropped, bit by bit, as no token moves; gradients too."""
    dense, model, _ = slim_both(case, (0, 2), (1.0, 1.0), Learned)
    images = case.draw().requires_grad_()
    actual, expected = case.call(model, images), case.call(dense, images)
    assert torch.equal(actual, expected)
    ours = probe_gradients(actual, dict(model.named_parameters()) | {"images": images})
    theirs = probe_gradients(expected, dict(dense.named_parameters()) | {"images": images})
    assert ours.keys() - theirs.keys() == {
        name for name in ours if "slimming." in name and ours[name] is None
    }
    assert all(
        other is ours[name] is None or torch.equal(other, ours[name])
        for name, other in theirs.items()
    )


def test_taking_slimming_off_restores_the_model(case):
    dense = case.model()
    model, images = copy.deepcopy(dense), case.draw()
    expected = case.call(dense, images)
    assert demo_sdtps.slim(model, (1, 2), (0.5, 0.5), Learned(WIDTH)) is model
    assert not torch.equal(case.call(model, images)[0, 0], expected[0, 0])
    assert demo_sdtps.unslim(model) is model
    for one, other in zip(model.modules(), dense.modules(), strict=True):
        assert type(one) is type(other) and vars(one).keys() == vars(other).keys()
    assert list(model.state_dict()) == list(dense.state_dict())
    assert torch.equal(case.call(model, images), expected)


def test_the_default_is_the_setting_that_was_chosen_without_training():
    """The first bold row of the table in docs/results.md."""
    case = CASES["timm"]
    dense, images = case.model(), case.draw()
    default = demo_sdtps.slim(copy.deepcopy(dense))
    chosen = demo_sdtps.slim(dense, (0,), (0.7,), "saliency")
    assert torch.equal(case.call(default, images), case.call(chosen, images))
    assert default.slimming.counts(200) == (140,)


@pytest.mark.parametrize(("name", "settings"), [("timm", {}), ("DINOv3", {"merge": False})])
def test_operations_are_a_budget(name, settings):
    """Of the share at least 98 % are used and no more, as fvcore counts."""
    size = {"hidden_size": 96, "intermediate_size": 384, "image_size": 224}
    dense = (
        timm.create_model("vit_tiny_patch16_224", embed_dim=96, depth=3, num_classes=0)
        if name == "timm"
        else transformers_model("DINOv3ViTModel", **size)
    )
    model = demo_sdtps.slim(copy.deepcopy(dense), (0, 2), operations=0.35, **settings)
    image = torch.zeros(1, 3, 224, 224)
    assert 0.98 * 0.35 <= total_macs(model, (image,)) / total_macs(dense, (image,)) <= 0.35
    first, second = model.slimming.counts(196)
    assert second == math.ceil(first * first / 196)
    with pytest.raises(UserError, match="operations is"):
        model.slimming.counts(2)
