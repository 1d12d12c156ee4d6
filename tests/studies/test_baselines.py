"""The rivals of studies/baselines.py against slow versions of their equations, on blocks of timm, block after block."""

import copy

import pytest
import timm
import torch
from golden_cases import relative_error
from numeric import generator, tolerance
from tiny import BLOCK, tiny_cfg, tiny_model

from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.runtime.errors import UserError
from studies import baselines
from studies.baselines import MergedState, constant_shares
from tests.reference import rivals as reference
from vit_slim import slim
from vit_slim.stage import Block, State
from vit_slim.wrap import Slimming

STAGES = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.75,0.75]")
SLIM = (*STAGES, "MODEL.SLIM_SHARED", "False")
GRID, WIDTH, DEPTH = (6, 5), 64, 4


@pytest.fixture(scope="module")
def blocks():
    """Of a ViT whose attention is far from uniform, in float64."""
    torch.manual_seed(3)
    model = timm.create_model("test_vit", num_classes=0).eval().double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.15) if weight.ndim > 1 else None
    return [copy.deepcopy(block) for block in (*model.blocks, *model.blocks)][:DEPTH]


def images(seed, prefix=1):
    values = torch.randn(2, prefix + GRID[0] * GRID[1], WIDTH, generator=generator(seed))
    return values.double().requires_grad_()


def run(rival, blocks, values, keep=None, merge=True, **known):
    """The tokens and the state after each block."""
    state = State(GRID, **known)
    for number, block in enumerate(blocks):
        count = state.count if keep is None else keep[number]
        step = rival.run(Block(block, block.forward), values, state, count, merge)
        values, state = step.values, step.state
        yield values, state


def assert_equal(actual, expected, values, slow_values):
    assert relative_error(actual.detach(), expected.detach()) < 1e-6
    probe = torch.randn(actual.shape, generator=generator(9)).double()
    (actual * probe).sum().backward()
    (expected * probe).sum().backward()
    assert relative_error(values.grad, slow_values.grad) < 1e-6


@pytest.mark.parametrize("prefix", [1, 2, 3])
def test_tome_merges_inside_each_block(blocks, prefix):
    """Four blocks by a constant number, with as many protected tokens: values, gradients, sizes and numbers of tokens."""
    patches, values = GRID[0] * GRID[1], images(4, prefix)
    shares, keep = constant_shares(patches, 6, DEPTH), [24, 18, 12, 6]
    assert list(Slimming(range(DEPTH), shares, ()).counts(patches)) == keep
    tome = baselines.ToMe(WIDTH, GRID, keep=shares)
    steps = list(run(tome, blocks, values, keep))
    slow_values = values.detach().clone().requires_grad_()
    outputs = []
    for row in range(len(values)):
        rows, sizes = slow_values[row], torch.ones(values.shape[1]).double()
        for block, (actual, state) in zip(blocks, steps, strict=True):
            rows, sizes = reference.tome(block, rows, sizes, 6, prefix)
            assert len(rows) == actual.shape[1] == prefix + state.count
            assert torch.equal(state.sizes[row].double(), sizes)
        outputs.append(rows)
    assert_equal(steps[-1][0], torch.stack(outputs), values, slow_values)
    assert steps[-1][1].sizes.sum(dim=1).tolist() == 2 * [prefix + patches]


def test_evit_drops_inside_each_block(blocks):
    """Four blocks at the published ratio: the extra token of a block is ranked at the next."""
    values = images(5)
    evit = baselines.EViT(WIDTH, GRID, keep=DEPTH * (0.7,))
    steps = list(run(evit, blocks, values))
    assert [actual.shape[1] for actual, _ in steps] == [23, 18, 14, 12]
    slow_values, outputs = values.detach().clone().requires_grad_(), []
    for row in range(len(values)):
        rows = slow_values[row]
        for block, (actual, _) in zip(blocks, steps, strict=True):
            rows = reference.evit(block, rows, 0.7)
            assert len(rows) == actual.shape[1]
        outputs.append(rows)
    assert_equal(steps[-1][0], torch.stack(outputs), values, slow_values)


def test_patches_are_dropped_before_the_first_block_and_merged_in_the_others(blocks):
    values, saliency = images(8), torch.rand(2, GRID[0] * GRID[1], generator=generator(10))
    rival, keep = baselines.DropThenMerge(WIDTH, GRID), (20, 16, 12, 8)
    *_, (actual, _) = run(rival, blocks, values, keep, merge=False, saliency=saliency)
    slow_values, outputs = values.detach().clone().requires_grad_(), []
    for rows, score in zip(slow_values, saliency.tolist(), strict=True):
        kept = sorted(sorted(range(len(score)), key=lambda place: -score[place])[:20])
        rows = blocks[0](rows[[0, *(1 + place for place in kept)]][None])[0]
        sizes = torch.ones(len(rows)).double()
        for block in blocks[1:]:
            rows, sizes = reference.tome(block, rows, sizes, 4, 1)
        outputs.append(rows)
    assert_equal(actual, torch.stack(outputs), values, slow_values)


@pytest.mark.parametrize("name", ["ToMe", "EViT"])
def test_at_ratio_one_the_model_is_that_of_timm(name):
    model = timm.create_model("test_vit", num_classes=0).eval().double()
    images = torch.randn(2, 3, 160, 160).double()
    dense = model(images)
    slim(model, (1, 3), (1.0, 1.0), getattr(baselines, name))
    assert relative_error(model(images).detach(), dense.detach()) < 1e-6


@pytest.mark.parametrize(
    ("precision", "limit"),
    [(None, tolerance(*6 * BLOCK)), (torch.bfloat16, 60**0.5 / 2**8)],
    ids=str,
)
def test_a_merged_token_weighs_as_much_as_its_patches(precision, limit):
    """A token of size 8 in attention and eight equal tokens of size 1 give the same other tokens, also in blocks that merge
    nothing. In bfloat16 three blocks round about ten times each, on both ways; the norm of many such errors is √60 units."""
    backbone = tiny_model(seed=12).eval().backbone
    backbone.precision = precision
    values = torch.randn(2, 6, 64, generator=generator(13))
    repeated = torch.cat([values, *7 * [values[:, -1:]]], dim=1)
    sizes = torch.ones(2, 6)
    sizes[:, -1] = 8
    sized = MergedState(backbone.grid_size, sizes=sizes)
    for fused in (True, False):
        backbone.fused_attention = fused
        with torch.no_grad(), backbone.ready(values.device):
            plain, merged, apart = (
                backbone.run_blocks(tokens, state, 0, 3)[:, :6] - values
                for tokens, state in ((values, None), (values, sized), (repeated, None))
            )
        assert relative_error(merged, apart) < limit and relative_error(plain, apart) > 0.1


@pytest.mark.parametrize("score", ["saliency", "studies.baselines:ToMe", "studies.baselines:EViT"])
def test_operations_are_counted(score, caplog):
    """All of them: a rival's MLP sees fewer tokens, its attention all."""
    cfg = tiny_cfg(*SLIM, "MODEL.SLIM_SCORE", score)
    model = tiny_model(*SLIM, "MODEL.SLIM_SCORE", score).eval()
    dense = count_macs(tiny_cfg(), tiny_model().eval())
    macs = count_macs(cfg, model)
    assert 0.5 < sum(macs.values()) / sum(dense.values()) < 1
    assert "Not counted" not in caplog.text


def test_other_blocks_and_ratios_are_refused():
    with pytest.raises(UserError, match="SLIM_KEEP"):
        baselines.EViT(WIDTH, GRID, keep=(0.7, 0.5))
    tome, block = baselines.ToMe(WIDTH, GRID), torch.nn.Identity()
    with pytest.raises(UserError, match="SLIM_SCORE"):
        tome.run(Block(block, block.forward), images(7), State(GRID), 20, True)
    with pytest.raises(UserError, match="SLIM_KEEP"):
        values = torch.randn(1, 31, 64)
        model = timm.create_model("test_vit", num_classes=0)
        tome.run(Block(model.blocks[0], model.blocks[0].forward), values, State(GRID), 14, True)
