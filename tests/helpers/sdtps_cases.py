"""SDTPS beside its slow version: inputs, noise and comparisons."""

import torch
from numeric import assert_close, generator, shift_seed, tolerance

from demo_sdtps.modeling.sdtps import MultiModalSDTPS
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
    seed, patches, width, sparse, aggr, beta, use_gumbel=False, tau=1.0, select=False, stir=0.3
):
    """A module whose parameters are all random, norms, biases and scales too; as it starts training where `stir` is 0."""
    torch.manual_seed(shift_seed(seed))
    settings = (sparse, aggr, use_gumbel, tau, beta)
    module = MultiModalSDTPS(width, patches, *settings, gumbel_select=select)
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
    """The noise that a training forward draws after `torch.manual_seed(shift_seed(seed))`: -log of exponentials, modality by
    modality."""
    torch.manual_seed(shift_seed(seed))
    return [-torch.empty(batch, patches, dtype=dtype).exponential_().log() for _ in range(3)]


def random_sum(seed, outputs):
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


def assert_gradients_equal(actual, expected, lengths=BACK):
    """By layer, its weight, bias and scale together: one number's gradient may be zero but for rounding."""
    layers = {
        name: name.replace("aggr.scale", "aggr.weight.3.scale").rpartition(".")[0] or name
        for name in expected
    }
    for layer in set(layers.values()):
        names = [name for name in expected if layers[name] == layer]
        one, other = (flat(gradients[name] for name in names) for gradients in (actual, expected))
        if other.eq(0).all():
            assert one.eq(0).all(), layer
        else:
            # An aggregation's gradient is a difference of terms of about 1, and small where a softmax is almost one token.
            assert_close(
                one, other, *lengths, scale=max(float(other.abs().max()), float("_aggr." in layer))
            )


def flat(tensors):
    return torch.cat([torch.zeros(1) if tensor is None else tensor.flatten() for tensor in tensors])
