"""SEPS: memory, what it refuses, and its parts on their own."""

import pytest
import torch
from numeric import assert_close, generator, shift_seed
from seps_sums import PATH

from benchmarks.rows import peak_memory
from seps import CrossSparseAggrNet, RatioLoss
from tests.reference import seps as reference

NARROW = {"embed_size": 20, "num_patches": 9}


@torch.no_grad()
def compare(images, captions, patches, width):
    """Random images with captions of 8 to 24 and long captions of 30 to 60 words, in evaluation."""
    texts = []
    for shortest, longest in ((8, 24), (30, 60)):
        texts += [
            torch.randn(captions, longest, width),
            torch.randint(shortest, longest + 1, (captions,)),
        ]
    CrossSparseAggrNet(width, patches, use_paper_version=True).eval()(
        torch.randn(images, 1 + patches, width), *texts
    )


@pytest.mark.slow
@pytest.mark.soak
def test_memory_does_not_grow_with_the_captions():
    """Forty times as many captions add what they themselves take, and their similarities."""
    images, patches, width = 100, 64, 32
    few, many = (peak_memory(compare, images, captions, patches, width) for captions in (50, 2000))
    words = 2000 * (24 + 60) * width * 4  # words of captions and long captions, in float32
    # weights and merged tokens of all pairs
    merged = images * 2000 * int(patches * 0.2) * (patches + width) * 4
    assert words < 2**20 * (many - few) < merged / 4


@pytest.mark.parametrize("paper", [False, True])
def test_the_ratio_loss_steers_nothing_with_gumbel_either(paper):
    """A softmax sums to 1 whatever the scores are."""
    torch.manual_seed(shift_seed())
    network = CrossSparseAggrNet(**NARROW, use_paper_version=paper, use_gumbel_softmax=True).train()
    _, masks = network(
        torch.randn(3, 9, 20),
        torch.randn(2, 4, 20),
        torch.tensor([4, 2]),
        torch.randn(2, 6, 20),
        [6, 3],
    )
    loss = RatioLoss(target_ratio=0.3)(masks)
    # the open version's scores have no parameters
    assert loss > 0.01 and loss.requires_grad == paper
    if paper:
        for mask in masks:
            mask.retain_grad()
        loss.backward()
        of_masks = float(masks[0].grad.abs().max())
        # a sum over the patches of all pairs, each times its softmax
        for parameter in network.sparse_net_cap.parameters():
            assert_close(parameter.grad, torch.zeros_like(parameter), 9, 2 * 3 * 9, scale=of_masks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("paper", [False, True])
def test_other_precisions(dtype, paper):
    """Of patches along the captions, which are kept, and against them."""
    torch.manual_seed(shift_seed())
    network = CrossSparseAggrNet(**NARROW, use_paper_version=paper).eval().to(dtype)
    draws = generator()
    ways = torch.tensor([1.0, -1, 1, 1, -1, 1, -1, 1, -1])[:, None]
    tokens, words = (
        way + 0.3 * torch.randn(*size, 20, generator=draws)
        for way, size in ((ways, (3, 9)), (1, (2, 4)))
    )
    inputs = tokens.to(dtype), words.to(dtype), [4, 2]
    expected, _ = reference.similarities(
        {name: value.double() for name, value in network.state_dict().items()},
        *(tensor.double() for tensor in inputs[:2]),
        [4, 2],
        paper=paper,
        dual=True,
        sparse_ratio=0.5,
        aggr_ratio=0.4,
    )
    # The MLPs of scores, weights and relevance round to the module's precision, after sums in float32 as all the rest.
    lengths, coarsest = ([1] * 12, dtype) if dtype is torch.bfloat16 else (PATH, torch.float32)
    assert_close(network(*inputs), expected, *lengths, dtype=coarsest)
