"""The saliency of patches against a slow version of it."""

import pytest
import torch
from numeric import assert_close, generator

from tests.reference import patch_scores
from vit_slim.scores import Saliency, saliency
from vit_slim.stage import Context
from vit_slim.state import State

LARGE, SIZE, STRIDE = (9, 6), (6, 4), (4, 3)  # patches overlap


def random_picture(seed, positions=None):
    draws = generator(seed)
    count = LARGE[0] * LARGE[1] if positions is None else positions.shape[1]
    tokens = torch.randn(3, count, 16, generator=draws, requires_grad=True)
    height, width = (
        step * (patches - 1) + side for step, patches, side in zip(STRIDE, LARGE, SIZE, strict=True)
    )
    images = {"NI": torch.rand(3, 3, height, width, generator=draws)}
    places = {} if positions is None else {"NI": positions}
    return salient_context({"NI": tokens}, LARGE, (SIZE, STRIDE), images, positions=places)


def salient_context(tokens, grid, window, images, **more):
    state = State(grid, tuple(images), images=images, saliency=saliency(images, *window, grid))
    return Context(tokens, {}, grid, state=state, **more)


def some_places():
    """Of 20 patches that a stage has left, another choice in each image."""
    draws = generator(4)
    return torch.stack([torch.randperm(54, generator=draws)[:20].sort().values for _ in range(3)])


@pytest.mark.parametrize("positions", [None, some_places()], ids=["all patches", "some patches"])
def test_saliency_equals_the_slow_one(positions):
    context = random_picture(1, positions)
    with torch.autocast("cpu", torch.bfloat16):
        (actual,) = Saliency(16, LARGE)(context).values()
    assert actual.dtype == torch.float32 and not actual.requires_grad
    for row in range(3):
        where = None if positions is None else positions[row]
        expected = torch.tensor(
            patch_scores.saliency(context.images["NI"][row].double(), LARGE, SIZE, STRIDE),
            dtype=torch.double,
        )
        # Mean colours of up to 1, their distances, sums along rows and columns.
        assert_close(
            actual[row],
            expected if where is None else expected[where],
            SIZE[0] * SIZE[1],
            3,
            sum(LARGE),
            scale=1.0,
        )


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1), (1, 5), (4, 1), (2, 2), (9, 7)], ids=str)
def test_saliency_of_any_grid(grid):
    """Also of one with fewer patches than are compared, and of a row or a column, whose border is counted once."""
    image, side = torch.rand(1, 3, 2 * grid[0], 2 * grid[1], generator=generator(7)), (2, 2)
    actual = saliency({"TI": image}, side, side, grid)["TI"]
    expected = patch_scores.saliency(image[0].double(), grid, side, side)
    assert_close(actual[0], expected, 4, 3, sum(grid), scale=1.0)
