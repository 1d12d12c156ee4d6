"""Weights that a training step casts together, beside those that autocast casts one by one."""

from contextlib import nullcontext

import pytest
import torch
from numeric import generator
from torch import nn

from demo_sdtps.modeling.backbones import QuickGELUMlp
from demo_sdtps.modeling.precision import half_weights
from vit_slim import Score


def make_network():
    torch.manual_seed(0)
    blocks = nn.LayerNorm(16), QuickGELUMlp(16, 64), nn.LayerNorm(16), QuickGELUMlp(16, 32)
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4),
        nn.Flatten(2),
        nn.Linear(4, 16, bias=False),
        *blocks,
        nn.Linear(16, 1),
    )


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_values_and_gradients_are_those_of_autocast(precision):
    images = torch.randn(5, 3, 8, 8, generator=generator(1))
    runs = []
    for make_context in (lambda network: nullcontext(), half_weights):
        network = make_network()
        network[2].weight.requires_grad_(False)
        network.add_module("unused", QuickGELUMlp(16, 64))
        with torch.autocast("cpu", precision), make_context(network):
            assert [each.requires_grad for each in (network[2].weight, network[7].weight)] == [0, 1]
            output = network[:8](images)
        output.float().square().sum().backward()
        runs.append((output, [weight.grad for weight in network.parameters()]))
    (expected, gradients), (output, ours) = runs
    assert torch.equal(output, expected)
    without = [number for number, gradient in enumerate(gradients) if gradient is None]
    assert without == [number for number, gradient in enumerate(ours) if gradient is None]
    assert len(without) == 5, "a frozen layer, and one that is not used"
    for actual, gradient in zip(ours, gradients, strict=True):
        if gradient is not None:
            assert actual.dtype == torch.float32 and gradient.any()
            assert torch.equal(actual, gradient)


def test_weights_are_cast_inside_alone_and_only_for_gradients_in_half_precision():
    network = make_network()
    before = dict(network.named_parameters())

    def dtypes():
        return [layer.weight.dtype for layer in network.modules() if isinstance(layer, nn.Linear)]

    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(KeyboardInterrupt), half_weights(network):
            assert set(dtypes()) == {torch.bfloat16} and len(dtypes()) == 6
            assert {layer.weight.dtype for layer in network if isinstance(layer, nn.LayerNorm)} == {
                torch.float32
            }
            raise KeyboardInterrupt
        with torch.no_grad(), half_weights(network):
            assert set(dtypes()) == {torch.float32}
    with half_weights(network):
        assert set(dtypes()) == {torch.float32}
    after = dict(network.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
    network(torch.zeros(1, 3, 8, 8)).sum().backward()


class Precise(Score):
    """A score of the user's, which computes in float32."""

    def __init__(self):
        super().__init__(16, (1, 4))
        self.linear = nn.Linear(16, 1)

    def score(self, tokens, context):
        with torch.autocast("cpu", enabled=False):
            return self.linear(tokens.float()).squeeze(-1)


def test_a_score_may_compute_outside_autocast():
    network = nn.Sequential(nn.Linear(16, 16), Precise())
    with torch.autocast("cpu", torch.bfloat16), half_weights(network):
        assert network[0].weight.dtype == torch.bfloat16
        network[1].score(network[0](torch.ones(2, 4, 16)), None).sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())
