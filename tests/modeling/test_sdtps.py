"""SDTPS against a slow version of itself: what guides the choice, its Gumbel noise, and its errors."""

import math

import pytest
import torch
from numeric import assert_close, random_sum, shift_seed, tolerance
from sdtps_cases import PATH, assert_gradients_equal, build, draw
from tiny import equal

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.sdtps import SDTPS, MultiModalSDTPS, gumbel_noise
from tests.reference import sdtps as reference

# seed, batch, patches, width, sparse ratio, aggregation ratio, beta
SHAPES = [
    (1, 2, 16, 20, 0.5, 0.4, 0.25),
    (2, 3, 13, 24, 0.5, 0.4, 0.25),
    (3, 2, 9, 32, 1.0, 0.4, 0.25),
    (4, 1, 12, 20, 0.3, 0.9, 0.0),
    (5, 2, 11, 20, 0.75, 0.5, 0.5),
    (6, 2, 11, 12, 0.1, 1.0, 0.1),
]


def assert_like_reference(
    seed, batch, patches, width, sparse_ratio, aggr_ratio, beta, tau=None, select=False, missing=()
):
    """Values and gradients of a training forward, with Gumbel noise where `tau` is given; → its outputs."""
    module = build(
        seed, patches, width, sparse_ratio, aggr_ratio, beta, tau is not None, tau or 1.0, select
    )
    tokens, global_feats = draw(seed + 100, batch, patches, width)
    torch.manual_seed(shift_seed(seed + 200))
    # what the forward draws: -log of exponentials, modality by modality
    draws = [-torch.empty(batch, patches).exponential_().log() for _ in range(3)]
    noises = None if tau is None else draws
    torch.manual_seed(shift_seed(seed + 200))
    outputs = module(*tokens, *global_feats, missing=tuple(place in missing for place in range(3)))
    probed_outputs = outputs if tau else outputs[:3]  # without Gumbel the masks are constants
    random_sum(seed, probed_outputs).backward()

    largest = [1] * 3 if noises is None else [float(noise.abs().max()) for noise in noises]
    nudges = [
        tolerance(*PATH) * size * mask.detach().double()
        for size, mask in zip(largest, outputs[3:], strict=True)
    ]
    exact = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in module.named_parameters()
    }
    exact_tokens = [tensor.detach().double().requires_grad_() for tensor in tokens]
    exact_guides = [tensor.detach().double() for tensor in global_feats]
    ratios, draws = (sparse_ratio, aggr_ratio, beta), noises and [one.double() for one in noises]
    slimmed, masks = reference.sdtps(
        exact, exact_tokens, exact_guides, *ratios, tau, draws, select, missing, nudges
    )
    random_sum(seed, [*slimmed, *masks][: len(probed_outputs)]).backward()

    for output, expected in zip(outputs, [*slimmed, *masks], strict=True):
        assert_close(output, expected, *PATH)
    actual = {name: parameter.grad for name, parameter in module.named_parameters()}
    actual |= {f"tokens {index}": tensor.grad for index, tensor in enumerate(tokens)}
    exact |= {f"tokens {index}": tensor for index, tensor in enumerate(exact_tokens)}
    assert_gradients_equal(actual, {name: tensor.grad for name, tensor in exact.items()})
    assert all(tensor.grad is None for tensor in global_feats)
    return outputs


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape):
    assert_like_reference(*shape)


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_values_and_gradients_with_missing_modalities(missing):
    """Exactly the modalities that lose a guide have other scores, which the extra token shows, than with all three globals."""
    with_all, others = (
        assert_like_reference(31, 3, 13, 20, 0.5, 0.4, 0.25, missing=places)
        for places in ((), missing)
    )
    for place in range(3):
        assert torch.equal(with_all[place], others[place]) == (set(missing) <= {place})
        assert torch.equal(with_all[3 + place], others[3 + place]) or not set(missing) <= {place}


def test_of_equal_patches_the_first_are_kept():
    """Of so many that torch's own order of equal numbers is another one."""
    kept, mask = sdtps.select(torch.tensor([0.0, 1.0]).repeat_interleave(64).expand(2, -1), 80)
    assert kept.tolist() == 2 * [[*range(64, 128), *range(16)]]
    assert mask.nonzero()[:, 1].tolist() == 2 * [*range(16), *range(64, 128)]


def test_a_token_of_zeros_is_like_nothing():
    tokens, guides = torch.randn(2, 5, 8), torch.randn(3, 2, 8)
    tokens[1, 2] = guides[0, 1] = 0
    expected = torch.zeros(3, 2, 5, dtype=torch.bool)
    expected[0, 1] = expected[:, 1, 2] = True
    assert torch.equal(sdtps.cosines(tokens, guides) == 0, expected)


def test_nothing_dropped_leaves_an_extra_token_of_zeros():
    module = build(7, 10, 20, 1.0, 0.4, 0.25)
    tokens, global_feats = draw(8, 2, 10, 20)
    for slimmed in module(*tokens, *global_feats)[:3]:
        assert slimmed.shape == (2, 5, 20)
        assert slimmed[:, -1].eq(0).all()
        assert slimmed[:, :-1].abs().amin(dim=(0, 1)).gt(0).all()


@pytest.mark.parametrize("modality", range(3))
def test_wrong_number_of_patches(modality):
    module = MultiModalSDTPS(20, 16)
    tokens, global_feats = draw(29, 2, 16, 20)
    tokens[modality] = tokens[modality][:, :15]
    with pytest.raises(ValueError, match=r"15.*16"):
        module(*tokens, *global_feats)


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
    """To the last bit, also under autocast and with weights and tokens in half precision; gradients stay finite there."""
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


def test_selection_is_sampling_without_replacement():
    """The patches come one after the other with chances as exp(score) among those left (Plackett and Luce), within six standard
    deviations √(n p (1 - p)) of a count of n draws: one false alarm in 500 million."""
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
        assert equal(outputs, expected)
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
