"""The scores that have a name against slow versions: saliency by shortest ways, and the one that learns from it by Otsu's
threshold by trial, patch by patch."""

import pytest
import torch
from numeric import assert_close, generator, shift_seed

from demo_sdtps.config import MODALITIES
from tests.reference import patch_scores
from tests.reference.patch_scores import otsu
from vit_slim.scores import Saliency, SelfSupervised, above_otsu, saliency
from vit_slim.stage import State

LARGE, SIZE, STRIDE = (9, 6), (6, 4), (4, 3)  # patches overlap
WIDTH, GRID, PATCH, PATCHES, LEFT, BATCH = 12, (6, 4), 4, 24, 15, 3


def some_places(rows, count, left, draws):
    """Those that a stage has left, another choice in each image."""
    order = torch.rand(rows, count, generator=draws).argsort(dim=1)
    return order[:, :left].sort(dim=1).values


@pytest.mark.parametrize("left", [54, 20], ids=["all patches", "some patches"])
def test_saliency_equals_the_slow_one(left):
    draws = generator(1)
    height, width = (
        step * (patches - 1) + side for step, patches, side in zip(STRIDE, LARGE, SIZE, strict=True)
    )
    images = torch.rand(3, 3, height, width, generator=draws)
    places = None if left == 54 else some_places(3, 54, left, draws)
    with torch.autocast("cpu", torch.bfloat16):
        state = State(LARGE, saliency=saliency(images, SIZE, STRIDE, LARGE), positions=places)
        actual = Saliency(16, LARGE).score(torch.zeros(3, left, 16, requires_grad=True), state)
    assert actual.dtype == torch.float32 and not actual.requires_grad
    for row in range(3):
        slow = patch_scores.saliency(images[row].double(), LARGE, SIZE, STRIDE)
        expected = torch.tensor(slow, dtype=torch.double)[
            slice(None) if places is None else places[row]
        ]
        # Mean colours of up to 1, their distances, sums along rows and columns.
        assert_close(actual[row], expected, SIZE[0] * SIZE[1], 3, sum(LARGE), scale=1.0)


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1), (1, 5), (4, 1), (2, 2), (9, 7)], ids=str)
def test_saliency_of_any_grid(grid):
    """Also of one with fewer patches than are compared, and of a row or a column, whose border is counted once."""
    image, side = torch.rand(1, 3, 2 * grid[0], 2 * grid[1], generator=generator(7)), (2, 2)
    actual = saliency(image, side, side, grid)
    expected = patch_scores.saliency(image[0].double(), grid, side, side)
    assert_close(actual[0], expected, 4, 3, sum(grid), scale=1.0)


@pytest.mark.parametrize("count", [2, 3, 128])
def test_otsus_threshold_against_trying_all(count):
    scores = torch.randn(8, count, generator=generator(2)).exp()
    for score, actual in zip(scores, above_otsu(scores), strict=True):
        assert actual.tolist() == otsu(score.tolist())


def test_equal_scores_have_no_foreground():
    assert above_otsu(torch.full((2, 8), 0.3)).tolist() == [[0.0] * 8] * 2


@pytest.mark.parametrize("shared", [True, False])
def test_the_loss_is_the_cross_entropy_against_pseudo_masks(shared):
    """Of what an earlier stage has left; of the sum of all modalities where they keep the same places, else of their own."""
    draws, side, rows = generator(3), (PATCH, PATCH), len(MODALITIES) * BATCH
    images = torch.rand(rows, 3, GRID[0] * PATCH, GRID[1] * PATCH, generator=draws)
    places = some_places(rows, PATCHES, LEFT, draws)
    scores = torch.randn(rows, LEFT, generator=draws, requires_grad=True)
    known = saliency(images, side, side, GRID)
    state = State(GRID, MODALITIES, shared, saliency=known, positions=places)
    torch.manual_seed(shift_seed())
    score = SelfSupervised(WIDTH, GRID, 2.5, MODALITIES).train()
    terms, exact = [], scores.detach().double().requires_grad_()
    slow = [
        torch.tensor(patch_scores.saliency(image.double(), GRID, side, side)) for image in images
    ]
    for row in range(rows):
        mask = otsu((sum(slow[row % BATCH :: BATCH]) if shared else slow[row]).tolist())
        for number, place in enumerate(places[row].tolist()):
            p = 1 / (1 + (-exact[row, number]).exp())
            terms.append(-mask[place] * p.log() - (1 - mask[place]) * (1 - p).log())
    expected = 2.5 * sum(terms) / len(terms)
    actual = score.loss(scores, state)
    assert_close(actual, expected, BATCH * LEFT, len(MODALITIES))
    assert_close(
        *(torch.autograd.grad(*each)[0] for each in ((actual, scores), (expected, exact))), 3, 3
    )
    assert score.eval().loss(scores, state) is None and not score.reads_saliency
