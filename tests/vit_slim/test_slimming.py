"""Slimming between the blocks of every kind of backbone beside a slow version: values, gradients, and what is kept."""

import pytest
import torch
from numeric import assert_close, generator, shift_seed
from sdtps_cases import assert_gradients_equal
from slim_models import learned, nudge, probe_gradients
from tiny import (
    CAMERAS,
    DINOV3,
    EVA02,
    MIXED,
    REGISTERS,
    backbone_cfg,
    disturb,
    random_images,
    tiny_cfg,
)

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling import backbones as clip
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.demo import make_slimming, slim_backbone
from demo_sdtps.modeling.precision import cast_copy
from tests.reference import slim as reference
from vit_slim.stage import Score, State, run_stage
from vit_slim.wrap import Slimming

BACKBONES = ("test_vit", "CLIP", REGISTERS, EVA02, DINOV3, MIXED)
DEPTH = 3
SCORE = (384, 64, 384, 64)
"""Lengths of the sums of what is computed in float32, at most: cosines, or logits and softmax, and those of the means."""
PLAIN = ("MODEL.SIE_CAMERA", False, "MODEL.DROP_PATH", 0, "INPUT.JOINT_AUGMENTATION", True)


def build(name, blocks, keep, *opts):
    """The first blocks of a backbone in float64 and its slimming, all weights random; grids of 4 × 2 or 3 × 2 patches."""
    stages = ("MODEL.SLIM_BLOCKS", blocks, "MODEL.SLIM_KEEP", keep)
    opts = list(map(str, (*PLAIN, *stages, "MODEL.SLIM_SCORE", "learned:Learned", *opts)))
    torch.manual_seed(shift_seed())
    if name in ("test_vit", "CLIP"):
        kind = ["MODEL.PATCH_SIZE", 16]
        if name == "CLIP":
            kind = ["MODEL.TRANSFORMER_TYPE", "ViT-B-16", "MODEL.PATCH_SIZE", 0]
        cfg = tiny_cfg("MODEL.STRIDE_SIZE", "[16,16]", *kind, *opts)
    else:
        cfg = backbone_cfg(name, *opts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip, "NAME_IN_TIMM", "test_vit")
        backbone = make_backbone(cfg, CAMERAS)
    backbone.vit.blocks = backbone.vit.blocks[:DEPTH]
    slimming = make_slimming(cfg, backbone) if cfg.MODEL.SLIM_BLOCKS else None
    return cfg, disturb(backbone).double(), slimming and disturb(slimming).double().eval()


def draw(cfg, batch=2):
    images, _ = random_images(1, batch, tuple(cfg.INPUT.SIZE_TRAIN))
    return {modality: image.double().requires_grad_() for modality, image in images.items()}


def run_stem(backbone, images, stop):
    cameras = torch.zeros(sum(map(len, images.values())), dtype=torch.long)
    stem = backbone.stem(torch.cat(list(images.values())), cameras, stop)
    return dict(zip(images, stem.chunk(len(images)), strict=True))


def sum_over_modalities(score):
    """The sum over the modalities, of which `images` has as many rows each."""

    def total(call, row, index, layer, images):
        batch = len(images) // len(MODALITIES)
        rows = range(row % batch, len(images), batch)
        parts = [score(call, other, index, layer, images) for other in rows]
        return [sum(values) for values in zip(*parts, strict=True)]

    return total


def slow(cfg, backbone, slimming, images, stages):
    """Patches and class tokens of all modalities, one after the other."""
    score = learned(slimming, MODALITIES)
    score = sum_over_modalities(score) if cfg.MODEL.SLIM_SHARED else score
    rows = torch.cat(list(images.values()))

    def bump(call, row, index, place):
        stage, batch = stages[slimming.blocks.index(index)], len(rows) // len(MODALITIES)
        kept, scores = (
            by_modality[MODALITIES[row // batch]][row % batch]
            for by_modality in (stage.kept, stage.score)
        )
        return nudge(kept, scores, place)

    return reference.run(
        backbone.vit,
        "blocks",
        lambda vit: backbone(rows, torch.zeros(len(rows), dtype=torch.long)),
        {
            index: (share, score)
            for index, share in zip(slimming.blocks, slimming.keep, strict=True)
        },
        backbone.vit.num_prefix_tokens,
        merge=cfg.MODEL.SLIM_MERGE,
        nudge=bump,
    )


LARGE = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "blocks", "keep", "is_shared", "merge"),
    [
        ("test_vit", "[1,2]", "[0.5,0.5]", True, True),
        ("test_vit", "[1,2]", "[0.5,0.5]", False, False),
        ("CLIP", "[1]", "[0.5]", True, True),
        (EVA02, "[0,1]", "[0.6,1.0]", False, False),
        (DINOV3, "[0,2]", "[0.7,0.5]", False, True),
        pytest.param(REGISTERS, "[0,2]", "[0.7,0.5]", False, True, marks=LARGE),
        pytest.param(MIXED, "[1,2]", "[0.7,0.7]", True, True, marks=LARGE),
    ],
)
def test_values_and_gradients_are_those_of_the_slow_version(name, blocks, keep, is_shared, merge):
    opts = "MODEL.SLIM_SHARED", is_shared, "MODEL.SLIM_MERGE", merge
    cfg, backbone, slimming = build(name, blocks, keep, *opts)
    images = draw(cfg, 2 if name in ("test_vit", DINOV3) else 1)
    stem = run_stem(backbone, images, slimming.blocks[0])
    actual = slim_backbone(slimming, backbone, stem, images)
    named = dict(backbone.named_parameters()) | dict(slimming.named_parameters()) | images
    outputs = [torch.cat(list(each.values())) for each in (actual.tokens, actual.global_feats)]
    ours, theirs = (
        torch.cat([patches, class_tokens.unsqueeze(1)], dim=1)
        for patches, class_tokens in (outputs, slow(cfg, backbone, slimming, images, actual.stages))
    )
    assert_close(ours, theirs, *SCORE)
    gradients = probe_gradients(ours, named), probe_gradients(theirs, named)
    assert_gradients_equal(*gradients, (*SCORE, *SCORE))


@pytest.mark.parametrize("name", BACKBONES)
def test_keeping_all_is_the_dense_backbone(name):
    """Bit by bit, as no token moves."""
    cfg, backbone, slimming = build(name, "[0,2]", "[1.0,1.0]")
    images = draw(cfg)
    actual = slim_backbone(slimming, backbone, run_stem(backbone, images, 0), images)
    patches, class_tokens = backbone(
        torch.cat(list(images.values())), torch.zeros(6, dtype=torch.long)
    )
    assert torch.equal(torch.cat(list(actual.tokens.values())), patches)
    assert torch.equal(torch.cat(list(actual.global_feats.values())), class_tokens)
    for stage in actual.stages:
        assert all(kept.eq(torch.arange(kept.shape[1])).all() for kept in stage.kept.values())


def test_the_stages_record_what_they_scored_and_kept():
    cfg, backbone, slimming = build(DINOV3, "[0,2]", "[0.6,0.5]", "MODEL.SLIM_SHARED", "False")
    images = draw(cfg, 3)
    actual = slim_backbone(slimming, backbone, run_stem(backbone, images, 0), images)
    assert slimming.counts(6) == (4, 2) and backbone.num_patches == 6
    for modality in MODALITIES:
        scored = torch.arange(6).repeat(3, 1)
        for stage, count in zip(actual.stages, slimming.counts(6), strict=True):
            order = stage.score[modality].argsort(dim=1, descending=True, stable=True)
            kept = scored.gather(1, order[:, :count]).sort(dim=1).values
            assert torch.equal(stage.kept[modality], kept)
            scored = kept


class Spread(Score):
    def score(self, tokens, context):
        return 1e4 * tokens.detach().float().std(dim=-1)


def test_dropped_patches_far_below_the_best_still_make_a_mean():
    """As logits are, that differ by hundreds in sum."""
    tokens = torch.randn(2, 9, 8, generator=generator(2), dtype=torch.double)
    step = run_stage(tokens, State((2, 4)), Spread(8, (2, 4)), keep=4)
    assert (step.score.amax(dim=1) - step.score.amin(dim=1)).min() > 1000
    for row, extra in enumerate(step.values[:, -1]):
        others = sorted(set(range(8)) - set(step.state.positions[row].tolist()))
        weights = (step.score[row, others] - step.score[row, others].max()).double().exp()
        assert_close(extra, weights @ tokens[row, 1:][others] / weights.sum(), 8, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_keep_their_type(dtype):
    """The mean of the dropped ones is computed in float32."""
    tokens = torch.randn(2, 9, 8).to(dtype)
    step = run_stage(tokens, State((2, 4)), Spread(8, (2, 4)), keep=3)
    assert step.values.dtype == dtype and step.values.shape == (2, 1 + 3 + 1, 8)


@torch.no_grad()
def test_tokens_leave_a_backbone_of_half_precision_as_images_come():
    """Also through CLIP's projection, whose product is in half precision."""
    cfg, backbone, slimming = build("CLIP", "[1]", "[0.5]")
    half = cast_copy(backbone.float().eval(), torch.bfloat16)
    images = {name: image.float() for name, image in draw(cfg).items()}
    output = slim_backbone(slimming.float().eval(), half, run_stem(half, images, 1), images)
    tokens = [*output.tokens.values(), *output.global_feats.values()]
    assert {each.dtype for each in tokens} == {torch.float32}


def test_the_sum_of_scores_is_that_of_what_a_triplet_has():
    """Of all where it has nothing; none is missing where nothing is known."""
    scores = torch.tensor([[1.0], [10.0], [100.0]]).repeat_interleave(4, dim=0)  # RGB, NI, TI
    missing = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1]]).flatten()[:, None] > 0
    for absent, total in ((missing, [111, 101, 10, 111]), (None, [111] * 4)):
        state = State((1, 1), MODALITIES, missing=absent)
        assert state.sum_of_present(scores).flatten().tolist() == 3 * total


@pytest.mark.parametrize(
    ("count", "shares", "left"),
    [
        (10, [0.5, 0.5], (5, 3)),
        (128, [0.7, 0.7, 0.7], (90, 63, 45)),
        (100, [0.07], (7,)),
        (3, [0.1, 1e-9], (1, 1)),
    ],
)
def test_counts_are_rounded_up(count, shares, left):
    """A share that is whole but for the rounding of its product stays: 100 · 0.07 is 7."""
    assert Slimming(range(len(shares)), shares, ()).counts(count) == left
