"""Scores of patches, at any place in the backbone, against slow versions of themselves."""

from dataclasses import replace

import pytest
import torch
from numeric import assert_close, generator, shift_seed
from tiny import tiny_cfg

from demo_sdtps.config import MODALITIES
from tests.reference import patch_scores
from tests.reference import sdtps as reference
from vit_slim.scores import make_score, saliency
from vit_slim.scores.base import Context
from vit_slim.state import State

WIDTH, GRID = 24, (5, 2)
GUIDED = (WIDTH, WIDTH, 4, WIDTH, WIDTH // 4)
"""Lengths of the sums in the score of SDTPS: norms, cosines, their sum, MLP."""
SPAN = 4
"""Times which roundings of cosines grow when these are normalised: those of ten random patches differ by a quarter."""


def random_context(seed, batch=3):
    draws = generator(seed)
    tokens, class_tokens = (
        {modality: torch.randn(batch, *shape, generator=draws) for modality in MODALITIES}
        for shape in ((10, WIDTH), (WIDTH,))
    )
    for tensor in tokens.values():
        tensor.requires_grad_()
    return Context(tokens, class_tokens, GRID)


def tiny_score(name, seed=1, *opts):
    torch.manual_seed(shift_seed(seed))
    return make_score(name, tiny_cfg(*opts), WIDTH, GRID)


def one_by_one(function, batch):
    """`function` of each sample of a batch, (B, N) float64."""
    return torch.stack([torch.stack(function(sample)) for sample in batch.detach().double()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_distinctness(dtype):
    """In float32, whatever the tokens' type and autocast, and without gradient."""
    context = random_context(1)
    tokens = {modality: tensor.to(dtype) for modality, tensor in context.tokens.items()}
    with torch.autocast("cpu", torch.bfloat16):
        actual = tiny_score("distinctness")(replace(context, tokens=tokens))
    for modality, score in actual.items():
        assert score.dtype == torch.float32 and not score.requires_grad
        assert_close(
            score, one_by_one(patch_scores.distinctness, tokens[modality]), 10, WIDTH, WIDTH
        )


@pytest.mark.parametrize(
    ("missing", "beta"), [((), 0.25), (("NI",), 0.0), (("RGB", "TI"), 0.25), ((), 0.5)], ids=str
)
def test_the_score_of_sdtps_between_two_blocks(missing, beta):
    """Values and gradients: class tokens guide, without those of missing modalities, whatever SDTPS_GUIDE_MISSING says."""
    score = tiny_score("sdtps", 4, "MODEL.SDTPS_BETA", beta, "MODEL.SDTPS_GUIDE_MISSING", True)
    absent = {name: torch.ones(3, 1, dtype=torch.bool) for name in missing}
    context = replace(random_context(5), missing=absent)
    actual = score(context)
    draws = generator(6)
    for place, modality in enumerate(MODALITIES):
        mlp = dict(score.score_predictor[modality].named_parameters())
        named = {f"sparse.score_predictor.{name}": tensor for name, tensor in mlp.items()}
        named["tokens"] = context.tokens[modality]
        exact = {name: tensor.detach().double().requires_grad_() for name, tensor in named.items()}
        expected = []
        for sample, tokens in enumerate(exact["tokens"]):
            guides = [context.global_feats[other][sample].double() for other in MODALITIES]
            missing_places = [MODALITIES.index(name) for name in missing]
            scores = reference.score_patches(exact, tokens, place, guides, beta, missing_places)
            expected.append(torch.stack(scores))
        expected = torch.stack(expected)
        assert_close(actual[modality], expected, *GUIDED, scale=SPAN)
        probe = torch.randn(3, 10, generator=draws)
        (actual[modality] * probe).sum().backward()
        (expected * probe).sum().backward()
        for name, tensor in named.items():
            assert exact[name].grad.eq(0).all() == (beta == 0.5)
            assert_close(tensor.grad, exact[name].grad, *GUIDED, *GUIDED, 3 * 10)


# Scores that compare patches with the picture's border, by their tokens or by their colours

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
        (actual,) = make_score("saliency", tiny_cfg(), 16, LARGE)(context).values()
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


def test_an_object_is_salient_also_where_it_touches_the_border():
    """And nothing of an even picture is."""
    image = torch.full((2, 3, 45, 45), 0.5)
    image[1, :, 10:, 20:30] = 0.9
    tokens, window = {"TI": torch.zeros(2, 81, 8)}, ((5, 5), (5, 5))
    context = salient_context(tokens, (9, 9), window, {"TI": image})
    (score,) = make_score("saliency", tiny_cfg(), 8, (9, 9))(context).values()
    is_object = image[1, 0, 2::5, 2::5].flatten() > 0.6
    assert score[0].abs().max() == 0 and score[1][is_object].min() > score[1][~is_object].max()
