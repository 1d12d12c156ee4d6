"""Scores that compare patches with the picture's border, by their tokens or by their colours."""
import pytest
import torch
from numeric import assert_close, generator
from reference import cues
from tiny import tiny_cfg

from demo_sdtps.modeling.scores import make_score
from demo_sdtps.modeling.scores.base import Context

GRID, SIZE, STRIDE = (9, 6), (6, 4), (4, 3)  # patches overlap


def context_of(seed, positions=None):
    draws = generator(seed)
    count = GRID[0] * GRID[1] if positions is None else positions.shape[1]
    tokens = torch.randn(3, count, 16, generator=draws, requires_grad=True)
    image = torch.rand(3, 3, *((step * (n - 1) + side) for step, n, side in zip(STRIDE, GRID, SIZE, strict=True)),
                       generator=draws)
    return Context({"NI": tokens}, {}, GRID, positions={} if positions is None else {"NI": positions}, images={"NI": image},
                   patch_size=SIZE, patch_stride=STRIDE)


def some_places():
    """Of 20 patches that a stage has left, another choice in each image."""
    draws = generator(4)
    return torch.stack([torch.randperm(54, generator=draws)[:20].sort().values for _ in range(3)])


@pytest.mark.parametrize("positions", [None, some_places()], ids=["all patches", "some patches"])
@pytest.mark.parametrize("name", ["border", "saliency"])
def test_scores_equal_the_slow_ones(name, positions):
    context = context_of(1, positions)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = make_score(name, tiny_cfg(), 16, GRID).scores(context).values()
    assert found.dtype == torch.float32 and not found.requires_grad
    for row in range(3):
        where = None if positions is None else positions[row]
        if name == "border":
            expected = torch.stack(cues.border(context.tokens["NI"][row].detach().double(), GRID, where))
        else:
            expected = torch.tensor(cues.saliency(context.images["NI"][row].double(), GRID, SIZE, STRIDE), dtype=torch.double)
            expected = expected if where is None else expected[where]
        # Norms, mean, products; or mean colours of up to 1, their distances, sums along rows and columns.
        lengths = (16, len(expected), 16) if name == "border" else (SIZE[0] * SIZE[1], 3, sum(GRID))
        assert_close(found[row], expected, *lengths, scale=1.0)


def test_an_object_is_salient_also_where_it_touches_the_border():
    """And nothing of an even picture is."""
    image = torch.full((2, 3, 45, 45), 0.5)
    image[1, :, 10:, 20:30] = 0.9
    context = Context({"TI": torch.zeros(2, 81, 8)}, {}, (9, 9), images={"TI": image}, patch_size=(5, 5), patch_stride=(5, 5))
    (score,) = make_score("saliency", tiny_cfg(), 8, (9, 9)).scores(context).values()
    is_object = image[1, 0, 2::5, 2::5].flatten() > 0.6
    assert score[0].abs().max() == 0 and score[1][is_object].min() > score[1][~is_object].max()
