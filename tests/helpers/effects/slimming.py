"""MODEL.SLIM_…: what slimming in the backbone drops, by what, and what becomes of it."""

import torch
from numeric import tolerance
from pytest import approx
from tiny import ENCODER, PATCHES, WIDTH

from demo_sdtps.config import MODALITIES
from demo_sdtps.config.scores import MASK
from effects.base import are_most_unlike, effect, images_of, model_of

ONE_STAGE = ("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]")
SUPERVISED = (*ONE_STAGE, "MODEL.SLIM_SCORE", "supervised", "INPUT.JOINT_AUGMENTATION", "True")


def loss_of(cfg):
    """The auxiliary loss of a training forward, on triplets whose foreground is their upper half."""
    images, cameras = images_of(cfg)
    mask = torch.zeros(len(cameras), 1, *cfg.INPUT.SIZE_TRAIN)
    mask[..., : mask.shape[2] // 2, :] = 1
    loss = model_of(cfg).train().forward_features(images | {MASK: mask}, cameras).loss
    return None if loss is None else loss.item()


@effect(
    "MODEL.SLIM_BLOCKS",
    {"[1, 2]": [33, 18, 11], "[0, 2]": [18, 18, 11]},
    "MODEL.SLIM_KEEP",
    "[0.5, 0.5]",
)
@torch.no_grad()
def tokens_in_the_first_three_blocks(cfg):
    model, seen = model_of(cfg).eval(), []
    for block in model.backbone.vit.blocks[:3]:
        block.register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0].shape[1]))
    model.forward_features(*images_of(cfg))
    return seen


@effect("MODEL.SLIM_KEEP", {"[0.5]": [16], "[0.25]": [8]}, "MODEL.SLIM_BLOCKS", "[1]")
@torch.no_grad()
def patches_left_by_every_stage(cfg):
    stages = model_of(cfg).eval().forward_features(*images_of(cfg)).stages
    return [stage.kept["NI"].shape[1] for stage in stages]


@effect(
    "MODEL.SLIM_SCORE",
    {"distinctness": True, "saliency": False},
    *ONE_STAGE,
    "MODEL.SLIM_SHARED",
    "False",
)
@torch.no_grad()
def patches_unlike_the_mean_are_kept(cfg):
    model = model_of(cfg).eval()
    (stage,) = model.forward_features(*images_of(cfg)).stages
    images, cameras = images_of(cfg)
    tokens = model.backbone.stem(images["TI"], cameras, 1)[:, 1:]
    return are_most_unlike(stage.mask("TI", PATCHES) > 0, tokens, *ENCODER, PATCHES, WIDTH, WIDTH)


@effect("MODEL.SLIM_SHARED", {"True": True, "False": False}, *ONE_STAGE)
@torch.no_grad()
def all_modalities_keep_the_same_places(cfg):
    (stage,) = model_of(cfg).eval().forward_features(*images_of(cfg)).stages
    return all(torch.equal(stage.kept[modality], stage.kept["RGB"]) for modality in MODALITIES)


@effect("MODEL.SLIM_MERGE", {"True": 1 + 16 + 1, "False": 1 + 16}, *ONE_STAGE)
@torch.no_grad()
def tokens_in_the_last_block(cfg):
    model, seen = model_of(cfg).eval(), []
    model.backbone.vit.blocks[-1].register_forward_pre_hook(
        lambda block, inputs: seen.append(inputs[0].shape[1])
    )
    model.forward_features(*images_of(cfg))
    return seen[0]


@effect(
    "MODEL.SLIM_LOSS_WEIGHT",
    {value: approx(float(value), rel=tolerance(4)) for value in ("5.0", "0.25")},
    *SUPERVISED,
)
def loss_against_the_masks_over_that_of_weight_1(cfg):
    reference = cfg.clone()
    reference.defrost()
    reference.MODEL.SLIM_LOSS_WEIGHT = 1.0
    return loss_of(cfg) / loss_of(reference)
