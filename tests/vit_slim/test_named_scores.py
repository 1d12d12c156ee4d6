"""Saliency against a slow version by shortest ways, patch by patch."""

import pytest
import torch
from numeric import assert_close, generator

from tests.reference import patch_scores
from vit_slim.scores import Saliency, saliency
from vit_slim.stage import State

LARGE, SIZE, STRIDE = (9, 6), (6, 4), (4, 3)  # patches overlap


@pytest.mark.parametrize("left", [54, 20], ids=["all patches", "some patches"])
def test_saliency_equals_the_slow_one(left):
    draws = generator(1)
    height, width = (
        step * (patches - 1) + side for step, patches, side in zip(STRIDE, LARGE, SIZE, strict=True)
    )
    images = torch.rand(3, 3, height, width, generator=draws)
    order = torch.rand(3, 54, generator=draws).argsort(dim=1)  # another choice in each image
    places = order[:, :left].sort(dim=1).values
    with torch.autocast("cpu", torch.bfloat16):
        known = saliency(images, SIZE, STRIDE, LARGE)
        state = State(LARGE, saliency=known, positions=None if left == 54 else places)
        actual = Saliency(16, LARGE).score(torch.zeros(3, left, 16, requires_grad=True), state)
    assert actual.dtype == torch.float32 and not actual.requires_grad
    for row in range(3):
        slow = patch_scores.saliency(images[row].double(), LARGE, SIZE, STRIDE)
        expected = torch.tensor(slow, dtype=torch.double)[places[row]]
        # Mean colours of up to 1, their distances, sums along rows and columns.
        assert_close(actual[row], expected, SIZE[0] * SIZE[1], 3, sum(LARGE), scale=1.0)


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1), (1, 5), (4, 1), (2, 2), (9, 7)], ids=str)
def test_saliency_of_any_grid(grid):
    """Also of one with fewer patches than are compared, and of a row or a column, whose border is counted once."""
    image, side = torch.rand(1, 3, 2 * grid[0], 2 * grid[1], generator=generator(7)), (2, 2)
    actual = saliency(image, side, side, grid)
    expected = patch_scores.saliency(image[0].double(), grid, side, side)
    assert_close(actual[0], expected, 4, 3, sum(grid), scale=1.0)
