"""SDTPS beside its slow version: inputs, noise and comparisons."""

import torch
from numeric import assert_close, generator, shift_seed

from demo_sdtps.modeling.sdtps import MultiModalSDTPS

PATH = (32, 32, 4, 32, 8, 32, 32, 6, 16, 16)
"""Lengths on the way to the tokens, of the largest shape: scores (norms, cosines, sum, MLP), aggregation, softmax, mean."""


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
