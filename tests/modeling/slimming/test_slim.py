"""demo_sdtps.slim on tiny models of every library beside a slow version: values, gradients, all kept, taken off again."""

import copy

import pytest
import torch
from slim_models import (
    CASES,
    DEPTH,
    GRID,
    WIDTH,
    attention,
    by_saliency,
    compare,
    distinctness,
    gradients_of,
    hooks_of,
    slim_both,
    supervised,
)
from torch.utils.flop_counter import FlopCounterMode

import demo_sdtps
from demo_sdtps.modeling.slimming.scores.base import Score
from studies.baselines import EViT

pytestmark = pytest.mark.numeric


@pytest.fixture(params=CASES)
def case(request):
    if request.param == "OpenAI's CLIP":
        request.getfixturevalue("host")
    return CASES[request.param]


def of_library(case, score, blocks, keep, **settings):
    slow_scores = {
        "saliency": by_saliency(case),
        "distinctness": lambda model, images: distinctness,
        "supervised": lambda model, images: supervised(model),
    }
    return compare(case, score, blocks, keep, slow_scores[score], **settings)


@pytest.mark.parametrize("settings", [{}, {"merge": False}, {"restore": True}], ids=str)
def test_values_and_gradients_are_those_of_the_slow_version(case, settings):
    of_library(case, "saliency", (1, 2), (0.6, 0.5), **settings)


def test_by_distinctness_from_the_input_on(case):
    of_library(case, "distinctness", (0, 2), (0.7, 0.5))


class ByAttention(EViT):
    """With the extra token of other scores."""

    merge = Score.merge


def test_by_the_attention_that_the_next_block_computes(case):
    compare(
        case, ByAttention(WIDTH, case.grid), (0, 2), (0.6, 0.5), lambda model, images: attention
    )


@pytest.mark.parametrize("merge", [True, False])
def test_by_a_score_with_weights(case, merge):
    """Its gradient goes through the weights of the extra tokens, and with `merge` alone there is one."""
    assert of_library(case, "supervised", (1, 2), (0.6, 0.5), merge=merge) == merge


@pytest.mark.parametrize("score", ["saliency", EViT(WIDTH, GRID)], ids=["saliency", "EViT"])
def test_keeping_all_is_the_dense_model(case, score):
    """Bit by bit, as no token moves; gradients too."""
    for restore in (True, False):
        dense, model, _ = slim_both(case, (0, 2), (1.0, 1.0), score, restore=restore)
        images = case.draw().requires_grad_()
        actual, expected = case.call(model, images), case.call(dense, images)
        assert torch.equal(actual, expected)
        ours, theirs = (
            gradients_of(output, dict(each.named_parameters()) | {"images": images})
            for output, each in ((actual, model), (expected, dense))
        )
        assert ours.keys() == theirs.keys()
        assert all(
            one is other is None or torch.equal(one, other)
            for one, other in zip(ours.values(), theirs.values(), strict=True)
        )


def test_taking_slimming_off_restores_the_model(case):
    dense = case.model()
    model, images, hooks = copy.deepcopy(dense), case.draw(), hooks_of(dense)
    expected = case.call(dense, images)
    for score in ("supervised", "saliency"):
        assert demo_sdtps.slim(model, (1, 2), (0.5, 0.5), score) is model
        assert hooks_of(model) > hooks and not torch.equal(
            case.call(model, images)[0, 0], expected[0, 0]
        )
        assert demo_sdtps.unslim(model) is model
        assert hooks_of(model) == hooks and list(model.state_dict()) == list(dense.state_dict())
        assert [name for name, _ in model.named_modules()] == [
            name for name, _ in dense.named_modules()
        ]
        assert torch.equal(case.call(model, images), expected)


def test_operations_fall(case):
    """By those of the linear layers for half of the patches in each block after the stage, and of their attention."""
    dense, model, _ = slim_both(case, (1,), (0.5,), merge=False)
    images, counts = case.draw(), []
    for each in (dense, model):
        with FlopCounterMode(display=False) as counter:
            case.call(each, images)
        counts.append(counter.get_total_flops())
    patches = case.grid[0] * case.grid[1]
    linear = sum(
        parameter.numel()
        for parameter in dense.get_submodule(case.blocks)[1].parameters()
        if parameter.ndim == 2
    )
    saved = 2 * len(images) * patches / 2 * linear * (DEPTH - 1)
    before, after = case.prefix + patches, case.prefix + patches // 2
    products = 4 * len(images) * WIDTH * (before**2 - after**2) * (DEPTH - 1)
    assert saved <= counts[0] - counts[1] <= saved + products
