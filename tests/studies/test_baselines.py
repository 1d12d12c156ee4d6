"""The baselines of studies/baselines.py against slow versions of them, and what they ask for: keys of a block, the weight of
merged tokens in attention, the count of their operations."""

from dataclasses import dataclass, replace
from itertools import count as numbers

import pytest
import torch
from golden_cases import relative_error
from numeric import assert_close, generator, tolerance
from tiny import BLOCK, random_images, tiny_cfg, tiny_model

from demo_sdtps.config import MODALITIES
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.modeling.sdtps import select
from studies import baselines
from studies.attention import keys
from studies.baselines import Rows, SizedState
from tests.reference import patch_scores as reference_scores
from tests.reference import slim_scores as reference
from vit_slim.stage import State, keep_tokens

WIDTH, GRID, HEADS, PATCHES, ROWS = 7, (5, 3), 3, 15, 9
SUMS = (HEADS, PATCHES, PATCHES, 3)
"""Lengths of the sums in means of patches: attention, weights, patches, products of the weights."""
SLIM = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.75,0.5]", "MODEL.SLIM_SHARED", "False")


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


@pytest.mark.parametrize(
    "name", ["test_vit", "eva02_tiny_patch14_224", "vit_small_patch16_dinov3_qkvb"]
)
def test_keys_are_those_of_the_next_block(name):
    """Before a rotary embedding."""
    backbone = tiny_model("MODEL.TRANSFORMER_TYPE", name, "MODEL.PATCH_SIZE", 8).eval().backbone
    images, cameras = random_images(15)
    outputs, tokens = [], backbone.stem(images["RGB"], cameras, 2)
    backbone.vit.blocks[2].attn.k_norm.register_forward_hook(
        lambda module, arguments, output: outputs.append(output)
    )
    actual = keys(backbone.vit.blocks[2], tokens)
    with torch.no_grad(), backbone.ready(actual.device):
        backbone.run_blocks(tokens, None, 2, 3)
    _, expected = outputs
    # norm and projection, of keys alone and with the others
    assert_close(actual, expected, *4 * [backbone.vit.embed_dim])


@pytest.mark.parametrize(
    ("precision", "limit"),
    [(None, tolerance(*6 * BLOCK)), (torch.bfloat16, 60**0.5 / 2**8)],
    ids=str,
)
def test_a_merged_token_weighs_as_much_as_its_patches(precision, limit):
    """A token of size 8 in attention and eight equal tokens of size 1 give the same other tokens.

    In bfloat16 three blocks round about ten times each, on both ways; the norm of many such errors is √60 units.
    """
    backbone = tiny_model(seed=12).eval().backbone
    backbone.precision = precision
    values = torch.randn(2, 6, 64, generator=generator(13))
    repeated = torch.cat([values, *7 * [values[:, -1:]]], dim=1)
    sizes = torch.ones(2, 6)
    sizes[:, -1] = 8
    sized = SizedState(backbone.grid_size, sizes=sizes)
    for fused in (True, False):
        backbone.fused_attention = fused
        with torch.no_grad(), backbone.ready(values.device):
            plain, merged, apart = (
                backbone.run_blocks(tokens, state, 0, 3)[:, :6] - values
                for tokens, state in ((values, None), (values, sized), (repeated, None))
            )
        assert relative_error(merged, apart) < limit and relative_error(plain, apart) > 0.1


@pytest.mark.parametrize("score", ["saliency", "studies.baselines:ToMe"])
def test_operations_are_counted(score, caplog):
    cfg = tiny_cfg(*SLIM, "MODEL.SLIM_SCORE", score)
    model = tiny_model(*SLIM, "MODEL.SLIM_SCORE", score).eval()
    assert count_macs(cfg, model)["slimming"] > 0
    assert "Not counted" not in caplog.text
