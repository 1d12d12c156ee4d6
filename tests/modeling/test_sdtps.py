"""SDTPS against a slow version of itself, what guides the choice, and its errors; test_gumbel.py has the noise."""

import ast
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from numeric import assert_close, generator, seeded, tolerance

from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.sdtps import MultiModalSDTPS, cosine_guidance, guides_of
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
PATH = (32, 32, 4, 32, 8, 32, 32, 6, 16, 16)
"""Lengths on the way to the tokens, of the largest shape: norms, cosines, their sum and the MLP of the scores; norm and MLP of
the aggregation; softmax and mean over the patches."""
BACK = (*PATH, *PATH, 3 * 16)
"""… and from there to the gradients, whose last sum is over the patches of a batch."""


def build(
    seed,
    patches,
    width,
    sparse_ratio,
    aggr_ratio,
    beta,
    use_gumbel=False,
    tau=1.0,
    select=False,
    stir=0.3,
):
    """A module whose parameters are all random, norms, biases and scales too; as it starts training where `stir` is 0."""
    torch.manual_seed(seeded(seed))
    module = MultiModalSDTPS(
        width, patches, sparse_ratio, aggr_ratio, use_gumbel, tau, beta, gumbel_select=select
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(stir * torch.randn_like(parameter))
    return module


def draw(seed, batch, patches, width):
    """Tokens [(B, N, C)] with gradient and globals [(B, C)] with gradient, of three modalities."""
    draws = generator(seed)
    return (
        [torch.randn(batch, patches, width, generator=draws).requires_grad_() for _ in range(3)],
        [torch.randn(batch, width, generator=draws).requires_grad_() for _ in range(3)],
    )


def draw_noises(seed, batch, patches, dtype=torch.float32):
    """The noise that a training forward draws after `torch.manual_seed(seeded(seed))`: -log of exponentials, one modality at a
    time."""
    torch.manual_seed(seeded(seed))
    return [-torch.empty(batch, patches, dtype=dtype).exponential_().log() for _ in range(3)]


def probed(seed, outputs):
    """A scalar that depends on every number of `outputs`, differently."""
    draws = generator(seed)
    return sum(
        (output * torch.randn(output.shape, generator=draws).to(output.dtype)).sum()
        for output in outputs
    )


def assert_like_reference(
    seed, batch, patches, width, sparse_ratio, aggr_ratio, beta, tau=None, select=False, missing=()
):
    """Values and gradients of a training forward, with Gumbel noise where `tau` is given; → its outputs."""
    module = build(
        seed, patches, width, sparse_ratio, aggr_ratio, beta, tau is not None, tau or 1.0, select
    )
    tokens, global_feats = draw(seed + 100, batch, patches, width)
    noises = None if tau is None else draw_noises(seed + 200, batch, patches)
    torch.manual_seed(seeded(seed + 200))
    outputs = module(*tokens, *global_feats, missing=tuple(place in missing for place in range(3)))
    probed_outputs = outputs if tau else outputs[:3]  # without Gumbel the masks are constants
    probed(seed, probed_outputs).backward()

    nudges = [
        tolerance(*PATH)
        * (1 if noises is None else float(noises[index].abs().max()))
        * mask.detach().double()
        for index, mask in enumerate(outputs[3:])
    ]
    exact = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in module.named_parameters()
    }
    exact_tokens = [tensor.detach().double().requires_grad_() for tensor in tokens]
    slimmed, masks = reference.sdtps(
        exact,
        exact_tokens,
        [tensor.detach().double() for tensor in global_feats],
        sparse_ratio,
        aggr_ratio,
        beta,
        tau,
        noises and [noise.double() for noise in noises],
        select,
        missing,
        nudges,
    )
    probed(seed, [*slimmed, *masks][: len(probed_outputs)]).backward()

    for output, expected in zip(outputs, [*slimmed, *masks], strict=True):
        assert_close(output, expected, *PATH)
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    found |= {f"tokens {index}": tensor.grad for index, tensor in enumerate(tokens)}
    exact |= {f"tokens {index}": tensor for index, tensor in enumerate(exact_tokens)}
    assert_gradients_equal(found, {name: tensor.grad for name, tensor in exact.items()})
    assert all(tensor.grad is None for tensor in global_feats)
    return outputs


def assert_gradients_equal(found, expected, lengths=BACK):
    """By layer, its weight, bias and scale together: one number's gradient may be zero but for rounding."""
    layers = {
        name: name.replace("aggr.scale", "aggr.weight.3.scale").rpartition(".")[0] or name
        for name in expected
    }
    for layer in set(layers.values()):
        names = [name for name in expected if layers[name] == layer]
        one, other = (flat(part[name] for name in names) for part in (found, expected))
        if other.eq(0).all():
            assert one.eq(0).all(), layer
        else:
            # An aggregation's gradient is a difference of terms of about 1, and small where a softmax is almost one token.
            assert_close(
                one, other, *lengths, scale=max(float(other.abs().max()), float("_aggr." in layer))
            )


def flat(tensors):
    return torch.cat([torch.zeros(1) if tensor is None else tensor.flatten() for tensor in tensors])


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


@pytest.mark.parametrize("index", range(3))
def test_weights_of_the_guides(index):
    """A modality's own global counts, and twice as much as another, whether it is missing or not; the sum is always 4."""
    global_feats = draw(32, 2, 1, 5)[1]
    first, second = others = [other for other in range(3) if other != index]
    expected = {
        (): (1, 1, 2),
        (first,): (0, 4 / 3, 8 / 3),
        (second,): (4 / 3, 0, 8 / 3),
        (first, second): (0, 0, 4),
    }
    for missing in product((False, True), repeat=3):
        guides, weights = guides_of(index, global_feats, missing)
        assert torch.equal(
            guides, torch.stack([global_feats[place] for place in (first, second, index)])
        )
        assert weights == pytest.approx(
            expected[tuple(other for other in others if missing[other])], rel=1e-12
        )
        assert sum(weights) == pytest.approx(4, rel=1e-12)
        if not (missing[first] or missing[second]):
            assert weights == (1, 1, 2), (
                "complete triplets compute what they always did, to the last bit"
            )


def test_a_missing_modality_guides_itself_alone():
    """The scores, and with them the extra tokens, see a missing modality's global in its own choice and in no other."""
    module = build(33, 16, 20, 0.5, 0.4, 0.25).eval()
    tokens, global_feats = draw(34, 3, 16, 20)
    for place in range(3):
        others = [
            torch.randn(3, 20) if index == place else own for index, own in enumerate(global_feats)
        ]
        for missing in (None, place):
            told = tuple(index == missing for index in range(3))
            one, other = (module(*tokens, *given, missing=told) for given in (global_feats, others))
            for index in range(3):
                is_guided = missing is None or index == place
                assert torch.equal(one[3 + index], other[3 + index]) or is_guided
                assert torch.equal(one[index], other[index]) != is_guided


def test_nothing_dropped_leaves_an_extra_token_of_zeros():
    module = build(7, 10, 20, 1.0, 0.4, 0.25)
    tokens, global_feats = draw(8, 2, 10, 20)
    for slimmed in module(*tokens, *global_feats)[:3]:
        assert slimmed.shape == (2, 5, 20)
        assert slimmed[:, -1].eq(0).all()
        assert slimmed[:, :-1].abs().amin(dim=(0, 1)).gt(0).all()


def test_state_dict_names():
    width, patches, hidden, out_tokens = 20, 16, 4, 3
    expected = {}
    for name in ("rgb", "nir", "tir"):
        expected |= {
            f"{name}_sparse.score_predictor.0.weight": (5, width),
            f"{name}_sparse.score_predictor.0.bias": (5,),
            f"{name}_sparse.score_predictor.2.weight": (1, 5),
            f"{name}_sparse.score_predictor.2.bias": (1,),
            f"{name}_aggr.weight.0.weight": (width,),
            f"{name}_aggr.weight.0.bias": (width,),
            f"{name}_aggr.weight.1.weight": (hidden, width),
            f"{name}_aggr.weight.1.bias": (hidden,),
            f"{name}_aggr.weight.3.weight": (out_tokens, hidden),
            f"{name}_aggr.weight.3.bias": (out_tokens,),
            f"{name}_aggr.scale": (1, 1, 1),
        }
    module = MultiModalSDTPS(width, patches, sparse_ratio=0.5, aggr_ratio=0.4)
    assert {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()} == expected


def test_guidance_has_no_gradient_and_spans_0_to_1():
    tokens, global_feats = draw(9, 2, 10, 20)
    guidance = cosine_guidance(tokens[0], torch.stack(global_feats))
    assert not guidance.requires_grad
    assert guidance.shape == (3, 2, 10)
    assert guidance.amin(dim=-1).eq(0).all()
    assert_close(guidance.amax(dim=-1), torch.ones(3, 2), 3)


@pytest.mark.parametrize("name", ["sparse_ratio", "aggr_ratio"])
@pytest.mark.parametrize("value", [0.0, -0.5, 1.01, float("nan")])
def test_ratio_outside_its_range(name, value):
    with pytest.raises(ValueError, match=name):
        MultiModalSDTPS(20, 16, **{name: value})


def test_ratios_that_leave_no_aggregated_token():
    with pytest.raises(ValueError, match="below one token"):
        MultiModalSDTPS(20, 16, sparse_ratio=0.25, aggr_ratio=0.2)
    MultiModalSDTPS(20, 16, sparse_ratio=0.25, aggr_ratio=0.25)  # exactly one


@pytest.mark.parametrize("modality", range(3))
def test_wrong_number_of_patches(modality):
    module = MultiModalSDTPS(20, 16)
    tokens, global_feats = draw(29, 2, 16, 20)
    tokens[modality] = tokens[modality][:, :15]
    with pytest.raises(ValueError, match=r"15.*16"):
        module(*tokens, *global_feats)


def test_the_file_stands_alone():
    imported = set()
    for node in ast.walk(ast.parse(Path(sdtps.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            imported.add(node.module.split(".")[0])
    assert "torch" in imported
    assert imported - {"torch"} <= sys.stdlib_module_names
