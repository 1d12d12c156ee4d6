"""SDTPS's Gumbel noise: what it leaves alone, the size and value of its straight-through gradient, and choosing by it."""

import math
from functools import lru_cache
from itertools import product
from unittest import mock

import pytest
import torch
from numeric import assert_close, shift_seed
from sdtps_cases import (
    PATH,
    SHAPES,
    assert_like_reference,
    build,
    draw,
    draw_noises,
    flat,
    random_sum,
)

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.heads import BNNeck
from demo_sdtps.modeling.losses import identity_loss
from demo_sdtps.modeling.sdtps import SDTPS, gumbel_noise
from tests.reference import sdtps as reference

GUMBEL_SHAPES = [(*SHAPES[0], 1.0), (*SHAPES[1], 0.5), (*SHAPES[2], 5.0), (*SHAPES[4], 2.0)]
TAUS = pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
SELECTS = pytest.mark.parametrize("select", [False, True], ids=["gradient", "select"])


@pytest.mark.parametrize("missing", [(), (1,)], ids=["complete", "NI missing"])
@SELECTS
@pytest.mark.parametrize("shape", GUMBEL_SHAPES, ids=str)
def test_values_and_gradients_with_gumbel(shape, select, missing):
    assert_like_reference(*shape, select=select, missing=missing)


@pytest.mark.parametrize("is_cast", [False, True], ids=["autocast", "cast"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@TAUS
def test_gumbel_leaves_the_forward_alone(tau, precision, is_cast):
    """To the last bit, in half precision too, under autocast and with the weights and tokens in that type; and gradients
    stay finite there."""
    plain, gumbel = (
        build(11, 16, 20, 0.5, 0.4, 0.25, use_gumbel, tau) for use_gumbel in (False, True)
    )
    tokens, global_feats = draw(12, 3, 16, 20)
    if is_cast:
        plain, gumbel = plain.to(precision), gumbel.to(precision)
        tokens, global_feats = (
            [tensor.detach().to(precision).requires_grad_() for tensor in tensors]
            for tensors in (tokens, global_feats)
        )
    with torch.autocast("cpu", precision, enabled=precision != torch.float32 and not is_cast):
        expected, actual = plain(*tokens, *global_feats), gumbel(*tokens, *global_feats)
    for one, other in zip(expected, actual, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
    for slimmed in actual[:3]:
        assert slimmed.dtype == tokens[0].dtype
    for mask in actual[3:]:
        assert mask.requires_grad
        assert mask.sum(dim=1).eq(8).all()
        assert ((mask == 0) | (mask == 1)).all()

    random_sum(15, actual).backward()
    assert all(tensor.grad.isfinite().all() for tensor in (*tokens, *gumbel.parameters()))


def cross_entropy(seed, slimmed):
    """The identity loss of the SDTPS feature, the mean over the tokens, through a new head."""
    feature = torch.cat([tokens.mean(dim=1) for tokens in slimmed], dim=-1)
    torch.manual_seed(shift_seed(seed))
    return identity_loss(BNNeck(feature.shape[1], 2)(feature), torch.tensor([0, 0, 1, 1]))


# batch, patches, width, how far the weights are from their start, loss
SIZES = {"probe": (3, 16, 20, 0.3, random_sum), "as in training": (4, 128, 64, 0.0, cross_entropy)}


@lru_cache
def gradient_norms(size, aggregate, *gumbel):
    """Norms of the gradients at the tokens and at the score MLP, each over 8 batches together."""
    batch, patches, width, stir, loss = SIZES[size]
    at_tokens, at_scorers = [], []
    for seed in range(8):
        module = build(seed, patches, width, 0.5, 0.4, 0.25, *gumbel, stir=stir)
        tokens, global_feats = draw(seed + 100, batch, patches, width)
        torch.manual_seed(shift_seed(seed + 200))
        with mock.patch.object(sdtps, "aggregate", aggregate):
            loss(seed + 300, module(*tokens, *global_feats)[:3]).backward()
        at_tokens += [tensor.grad for tensor in tokens]
        at_scorers += [
            parameter.grad
            for name, parameter in module.named_parameters()
            if "score_predictor" in name
        ]
    return flat(at_tokens).norm(), flat(at_scorers).norm()


def aggregate_1e10(tokens, logits, decision):
    """The known implementation's: (1 - D)·1e10 is subtracted from the logits."""
    return sdtps.softmax_mean(tokens, logits.float() - (1 - decision.float()).unsqueeze(-2) * 1e10)


def growth(size, tau, select, aggregate):
    """How many times larger the gradients are with Gumbel than without it, at the tokens and at the score MLP."""
    plain = gradient_norms(size, aggregate)
    gumbel = gradient_norms(size, aggregate, True, tau, select)
    return [float(one / other) for one, other in zip(gumbel, plain, strict=True)]


@pytest.mark.parametrize("tau", [0.1, 5.0])
@SELECTS
@pytest.mark.parametrize("size", ["probe", pytest.param("as in training", marks=pytest.mark.slow)])
def test_gumbel_gradients_keep_their_size(size, select, tau):
    """And the form that subtracts (1 - D)·1e10 does not, by the same measure: a return to it would be noticed.

    Of several batches, as at tau 0.1 the softmax is almost one patch, which may be one that matters, and its gradient has the
    factor 1 / tau.
    """
    assert all(
        0.1 < ratio < 10 * max(1, 1 / tau) for ratio in growth(size, tau, select, sdtps.aggregate)
    )
    assert all(1e5 < ratio < 1e12 for ratio in growth(size, tau, select, aggregate_1e10))


STEP = 1e-6
"""Of differences: the roundings of a value grow by 1 / STEP."""


def central_differences(function, point):
    """The derivatives of `function` at `point` (N,), stacked: two values for each of its numbers."""
    step = STEP * torch.eye(len(point), dtype=point.dtype)
    return torch.stack(
        [(function(point + move) - function(point - move)) / (2 * STEP) for move in step]
    )


def continuous(weights, patches, score, noise, kept, dropped, tau, out_tokens):
    """The slimmed tokens by a mask that moves: hard + softmax((moved score + noise) / tau) - softmax((score + noise) / tau).

    At the score they are the module's, and their derivative, which can be measured, is what the module has backward.
    """
    start = reference.soft_decision(score, noise, tau)

    def slim(moved):
        soft = reference.soft_decision(moved, noise, tau)
        decision = [(place in kept) + soft[place] - start[place] for place in range(len(patches))]
        return reference.slim(weights, patches, moved, kept, dropped, decision, out_tokens)

    return slim


@TAUS
@SELECTS
def test_gradient_of_the_tokens_by_finite_differences(select, tau, monkeypatch):
    """The whole way from the scores through mask and aggregation, in float64."""
    # the module computes its softmaxes in float32
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    batch, patches, width, sparse_ratio = 2, 9, 20, 0.5
    module = build(51, patches, width, sparse_ratio, 0.7, 0.25, True, tau, select).double()
    tokens, global_feats = (
        [tensor.detach().double() for tensor in tensors]
        for tensors in draw(52, batch, patches, width)
    )
    scores = [torch.rand(batch, patches, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    waiting = iter(scores)
    monkeypatch.setattr(sdtps, "guided_score", lambda *_: next(waiting))
    noises = draw_noises(53, batch, patches, torch.float64)
    torch.manual_seed(shift_seed(53))
    outputs = module(*tokens, *global_feats)[:3]
    probes = [torch.randn_like(output) for output in outputs]
    sum((output * probe).sum() for output, probe in zip(outputs, probes, strict=True)).backward()

    actual, expected = {"kept": [], "dropped": []}, {"kept": [], "dropped": []}
    for index, sample in product(range(3), range(batch)):
        score, noise, probe = (
            scores[index][sample].detach(),
            noises[index][sample],
            probes[index][sample],
        )
        kept, dropped = reference.choose(score + noise if select else score, sparse_ratio)
        weights = reference.modality_weights(module.state_dict(), reference.STATE_NAMES[index])
        slim = continuous(
            weights, tokens[index][sample], score, noise, kept, dropped, tau, len(probe) - 1
        )
        assert_close(outputs[index][sample], slim(score), *PATH, dtype=torch.float64)
        by_differences = (central_differences(slim, score) * probe).sum(dim=(1, 2))
        for group, places in (("kept", kept), ("dropped", dropped)):
            actual[group].append(scores[index].grad[sample][places])
            expected[group].append(by_differences[places])
    terms = max(
        float(probe.abs().max() * tensor.abs().max())
        for probe, tensor in zip(probes, tokens, strict=True)
    )
    for group in actual:
        assert_close(
            flat(actual[group]),
            flat(expected[group]),
            *PATH,
            probes[0][0].numel(),
            dtype=torch.float64,
            scale=terms / STEP,
        )


def test_selection_is_sampling_without_replacement():
    """The patches come one after the other with chances as exp(score) among those left (Plackett and Luce).

    A count of n draws has the standard deviation √(n p (1 - p)); six of them leave one false alarm in 500 million.
    """
    draws, patches, keep = 100_000, 5, 2
    module = build(64, patches, 20, 0.4, 0.5, 0.45, True, select=True)
    tokens, global_feats = draw(65, 1, patches, 20)
    by_modality = (dict(zip(MODALITIES, each, strict=True)) for each in (tokens, global_feats))
    score = SDTPS.forward(module, *by_modality, {})["RGB"].score
    chances = reference.plackett_luce(score[0].tolist(), keep)
    assert len(chances) == 20 and sum(chances.values()) == pytest.approx(1)

    def is_near(count, chance):
        return abs(count - draws * chance) < 6 * math.sqrt(draws * chance * (1 - chance))

    assert not all(is_near(draws / 20, chance) for chance in chances.values()), (
        "uniform draws are another distribution"
    )

    torch.manual_seed(shift_seed(66))
    with torch.no_grad():
        rows = tokens[0].expand(draws, -1, -1), score.expand(draws, -1)
        selected, _, masks, places = module.rgb_sparse(*rows)
    assert torch.equal(selected, tokens[0][0, places])
    actual = {choice: int((places == torch.tensor(choice)).all(dim=1).sum()) for choice in chances}
    assert sum(actual.values()) == draws
    assert all(is_near(actual[choice], chance) for choice, chance in chances.items())
    for patch in range(patches):
        first = sum(chance for choice, chance in chances.items() if choice[0] == patch)
        among = sum(chance for choice, chance in chances.items() if patch in choice)
        assert is_near(int((places[:, 0] == patch).sum()), first)
        assert is_near(int(masks[:, patch].sum()), among)


@SELECTS
def test_evaluation_draws_nothing_and_chooses_as_without_gumbel(select):
    plain, gumbel = (
        build(26, 16, 20, 0.5, 0.4, 0.25, *more).eval() for more in ((), (True, 1.0, select))
    )
    tokens, global_feats = draw(27, 2, 16, 20)
    torch.manual_seed(shift_seed(28))
    state = torch.get_rng_state()
    expected, first, second = (module(*tokens, *global_feats) for module in (plain, gumbel, gumbel))
    assert torch.equal(torch.get_rng_state(), state)
    for outputs in (first, second):
        assert all(torch.equal(one, other) for one, other in zip(outputs, expected, strict=True))
    assert not any(mask.requires_grad for mask in first[3:])


@pytest.mark.parametrize("zeros", ["one", "all"])
@SELECTS
def test_an_exponential_draw_of_zero(select, zeros, monkeypatch):
    """Its noise would be infinite, and the mask and all gradients not a number."""
    exponential = torch.Tensor.exponential_

    def with_zeros(tensor):
        exponential(tensor)
        (tensor if zeros == "all" else tensor[..., 3:4]).zero_()
        return tensor

    monkeypatch.setattr(torch.Tensor, "exponential_", with_zeros)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        noise = gumbel_noise(torch.empty(2, 9, dtype=dtype))
        assert noise.isfinite().all() and noise[:, 3].gt(9).all()

    module = build(68, 16, 20, 0.5, 0.4, 0.25, True, 0.1, select)
    tokens, global_feats = draw(69, 2, 16, 20)
    outputs = module(*tokens, *global_feats)
    random_sum(70, outputs).backward()
    assert all(tensor.isfinite().all() for tensor in outputs)
    assert all(mask.sum(dim=1).eq(8).all() for mask in outputs[3:])
    assert all(tensor.grad.isfinite().all() for tensor in (*tokens, *module.parameters()))
