"""The score that learns from pseudo-masks, against saliency by shortest ways and Otsu's threshold by trial, patch by patch."""

import pytest
import torch
from numeric import assert_close, generator, shift_seed
from tiny import tiny_cfg

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.scores import make_score
from tests.reference import patch_scores as reference_scores
from tests.reference.slim_scores import otsu
from vit_slim.scores import above_otsu, saliency
from vit_slim.stage import Context
from vit_slim.state import State

WIDTH, GRID, PATCH, PATCHES, LEFT, BATCH = 12, (6, 4), 4, 24, 15, 3


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
    draws = generator(3)
    size, side = (GRID[0] * PATCH, GRID[1] * PATCH), (PATCH, PATCH)
    images, places, scores = {}, {}, {}
    for name in MODALITIES:
        images[name] = torch.rand(BATCH, 3, *size, generator=draws)
        order = torch.rand(BATCH, PATCHES, generator=draws).argsort(dim=1)
        places[name] = order[:, :LEFT].sort(dim=1).values
        scores[name] = torch.randn(BATCH, LEFT, generator=draws, requires_grad=True)
    tokens = {name: torch.zeros(BATCH, LEFT, WIDTH) for name in MODALITIES}
    known = saliency(images, side, side, GRID)
    state = State(GRID, MODALITIES, shared=shared, saliency=known)
    context = Context(tokens, {}, GRID, positions=places, state=state)
    torch.manual_seed(shift_seed())
    cfg = tiny_cfg("MODEL.SLIM_LOSS_WEIGHT", 2.5)
    score = make_score("self_supervised", cfg, WIDTH, GRID).train()
    terms = []
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in scores.items()}
    for row in range(BATCH):
        saliencies = {
            name: torch.tensor(
                reference_scores.saliency(images[name][row].double(), GRID, side, side)
            )
            for name in MODALITIES
        }
        for name in MODALITIES:
            mask = otsu((sum(saliencies.values()) if shared else saliencies[name]).tolist())
            for number, place in enumerate(places[name][row].tolist()):
                p = 1 / (1 + (-exact[name][row, number]).exp())
                terms.append(-mask[place] * p.log() - (1 - mask[place]) * (1 - p).log())
    expected = 2.5 * sum(terms) / len(terms)
    actual = score.loss(scores, context)
    assert_close(actual, expected, BATCH * LEFT, len(MODALITIES))
    ours = torch.autograd.grad(actual, list(scores.values()))
    theirs = torch.autograd.grad(expected, list(exact.values()))
    assert_close(torch.stack(ours), torch.stack(theirs), 3, 3)
    assert score.eval().loss(scores, context) is None and not score.reads_saliency
