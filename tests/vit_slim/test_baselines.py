"""The baselines of studies/baselines.py against slow versions of them, alone and in the model."""

from dataclasses import dataclass, replace
from itertools import count as numbers

import pytest
import torch
from numeric import assert_close, generator, tolerance
from tiny import pairs, random_images, tiny_model

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.sdtps import select
from studies import baselines
from studies.baselines import EViT, Rows, SizedState
from tests.reference import patch_scores as reference_scores
from tests.reference import slim_scores as reference
from vit_slim.state import State, keep_tokens

WIDTH, GRID, HEADS, PATCHES, ROWS = 7, (5, 3), 3, 15, 9
SUMS = (HEADS, PATCHES, PATCHES, 3)
"""Lengths of the sums in means of patches: attention, weights, patches, products of the weights."""
PLACE = "studies.baselines:"
SLIM = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.75,0.5]", "MODEL.SLIM_SHARED", "False")
LEFT = (32, 24, 12)
"""Patches of the tiny model at its input, and after each stage."""


@dataclass(frozen=True)
class Drawn(Rows):
    """With attention (B, heads, n) and keys (B, n, D) that no block has computed."""

    weights: torch.Tensor
    block_keys: torch.Tensor

    def attention(self, queries=None):
        return self.weights.mean(dim=1)

    def keys(self):
        return self.block_keys


def draw(seed, has_sizes):
    """Tokens with a class token before the patches for ROWS images of three modalities."""
    draws = generator(seed)
    values = torch.randn(ROWS, 1 + PATCHES, WIDTH, generator=draws)
    attention = torch.randn(ROWS, HEADS, PATCHES, generator=draws).softmax(dim=-1)
    keys = torch.randn(ROWS, PATCHES, WIDTH, generator=draws)
    sizes = torch.randint(1, 5, (ROWS, 1 + PATCHES), generator=draws).float()
    state = SizedState(GRID, MODALITIES, sizes=sizes) if has_sizes else State(GRID, MODALITIES)
    return Drawn(values.requires_grad_(), state, PATCHES, None, None, attention, keys)


def exactly(rows):
    """Keys, attention and sizes of all rows in float64."""
    attention = [torch.stack(reference_scores.mean_attention(row)) for row in rows.weights.double()]
    return rows.block_keys.double(), torch.stack(attention), rows.sizes.double()


def are_apart(values, *lengths):
    """Whether values (…, n) are so far from each other that roundings decide nothing."""
    return float(values.sort(dim=-1).values.diff(dim=-1).min()) > 2 * tolerance(*lengths) * float(
        values.abs().max()
    )


def cosines(tokens):
    """Of each patch with each of the others, (B, n, n - 1)."""
    unit = torch.nn.functional.normalize(tokens, dim=-1)
    others = ~torch.eye(PATCHES, dtype=torch.bool)
    return (unit @ unit.mT)[:, others].unflatten(1, (PATCHES, PATCHES - 1))


def clear(has_sizes):
    """The first draw in which ToMe decides nothing by roundings."""
    for seed in numbers(1):
        rows = draw(seed, has_sizes)
        if are_apart(cosines(exactly(rows)[0]), WIDTH, WIDTH):
            return rows


def merge(name, rows, count):
    """What a baseline makes of the patches when it keeps `count`: values and state, and the places of these."""
    stage = getattr(baselines, name)(WIDTH, GRID, keep=(count / PATCHES,))
    rows = replace(rows, keep=count)
    scores = stage.rank(rows)
    kept, decision = select(scores, count)
    kept = kept.sort(dim=1).values
    slimmed = keep_tokens(rows.values, rows.state, kept)
    return *stage.merge_dropped(rows, *slimmed, scores, decision), kept


@pytest.mark.parametrize(
    "has_sizes", [False, True], ids=["first stage", "patches that stand for several"]
)
@pytest.mark.parametrize("count", [8, 11])
def test_tome_merges_as_its_description(count, has_sizes):
    """What is kept, the means, sizes and gradients, in float32 also under autocast."""
    rows = clear(has_sizes)
    with torch.autocast("cpu", torch.bfloat16):
        merged, state, kept = merge("ToMe", rows, count)
    keys, _, sizes = exactly(rows)
    values, expected = rows.values.detach().double().requires_grad_(), []
    for row in range(ROWS):
        groups = reference.tome(keys[row], count)
        means = reference.means(values[row, 1:], sizes[row], groups)
        expected.append(torch.cat([values[row, :1], means]))
        assert kept[row].tolist() == sorted(group[0] for group in groups)
        totals = torch.tensor([1, *reference.totals(sizes[row], groups)])
        assert_close(state.sizes[row], totals, WIDTH, PATCHES)
    assert torch.equal(state.positions, kept) and state.extra == 0
    assert_close(merged, torch.stack(expected), *SUMS)
    probe = torch.randn(merged.shape, generator=generator(2))
    (merged * probe).sum().backward()
    (torch.stack(expected) * probe).sum().backward()
    assert_close(rows.values.grad, values.grad, *SUMS)


def test_evit_scores_by_the_mean_over_the_heads():
    rows = draw(3, has_sizes=False)
    assert_close(EViT(WIDTH, GRID).rank(rows), exactly(rows)[1], HEADS)


def test_evit_sums_what_it_drops():
    """Weighted by their attention, value and gradient."""
    rows = draw(4, has_sizes=False)
    merged, _, kept = merge("EViT", rows, 8)
    extra = merged[:, -1]
    values, (_, attention, _) = rows.values.detach().double().requires_grad_(), exactly(rows)
    expected = torch.stack(
        [
            sum(
                attention[row, patch] * values[row, 1 + patch]
                for patch in range(PATCHES)
                if patch not in kept[row].tolist()
            )
            for row in range(ROWS)
        ]
    )
    assert_close(extra, expected, HEADS, PATCHES)
    actual, slow = (
        torch.autograd.grad(output.square().sum(), inputs)[0]
        for output, inputs in ((extra, rows.values), (expected, values))
    )
    assert_close(actual, slow, HEADS, PATCHES, PATCHES)


def with_inputs(*opts):
    """A model, and the tokens that its backbone's blocks are run on."""
    model, inputs = tiny_model(*opts), []
    run = model.backbone.run_blocks
    model.backbone.run_blocks = lambda *tokens: inputs.append(tokens[:2]) or run(*tokens)
    return model, inputs


@pytest.mark.parametrize("name", ["EViT", "ToMe"])
def test_a_baseline_in_the_model(name):
    """Numbers of tokens and sizes at each stage, in training; gradients reach the patches."""
    model, inputs = with_inputs(*SLIM, "MODEL.SLIM_SCORE", PLACE + name)
    outputs = model.train()(*random_images(4))
    sum(output.square().sum() for output in pairs(outputs)).backward()
    gradient = model.backbone.vit.patch_embed.proj.weight.grad
    assert gradient.isfinite().all() and gradient.norm() > 0
    prefix = model.backbone.vit.num_prefix_tokens
    for number, ((values, state), left) in enumerate(zip(inputs, LEFT, strict=True)):
        extra = number if name == "EViT" else 0
        assert values.shape[1] == prefix + left + extra
        assert state is None if number == 0 else state.extra == extra
        if number == 0 or name == "EViT":
            assert not isinstance(state, SizedState)
            continue
        assert state.sizes[:, :prefix].eq(1).all() and state.sizes[:, prefix:].min() >= 1
        assert state.sizes[:, prefix:].sum(dim=1).eq(32).all()
