"""The backbone: timm's own forward, the camera embedding, overlapping patches, and what is refused."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from backbone_cases import disturb, path_lengths
from numeric import assert_close, generator, shift_seed
from tiny import CAMERAS, CLIP_CONFIG, clip_model, exact, tiny_cfg
from torch import nn

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.modeling.backbones import make_backbone

NO_CAMERA = ("MODEL.SIE_CAMERA", "False")


def build(*opts, seed=0, cameras=CAMERAS):
    """A backbone in evaluation mode whose parameters are all random, norms and biases too."""
    torch.manual_seed(shift_seed(seed))
    return disturb(make_backbone(tiny_cfg(*opts), cameras).eval())


def draw(seed, size, batch=3):
    return torch.randn(batch, 3, *size, generator=generator(seed))


def unfold_patches(vit, images, stride):
    """The patch embedding in float64 as a matrix product over every window, row by row."""
    weight, bias = vit.patch_embed.proj.weight.double(), vit.patch_embed.proj.bias
    side = weight.shape[-1]
    # (B, 3, rows, columns, side, side)
    windows = images.double().unfold(2, side, stride[0]).unfold(3, side, stride[1])
    grid = windows.shape[2:4]
    patches = windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2) @ weight.flatten(1).T
    return patches if bias is None else patches + bias, tuple(grid)


def normalise(tokens, norm, eps):
    """Layer normalisation in float64."""
    return F.layer_norm(tokens, tokens.shape[-1:], norm.weight.double(), norm.bias.double(), eps)


@contextmanager
def replace(module, **values):
    """A module with other attributes, parameters or children for a while (monkeypatch would not put those back)."""
    kept = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


def without_blocks(backbone):
    """No transformer blocks, so that no token hears of another."""
    return replace(backbone.vit, blocks=nn.Sequential())


@pytest.mark.parametrize("size, stride", [((64, 32), (5, 7)), ((37, 50), (8, 8))], ids=str)
def test_equals_timm(size, stride):
    backbone = build(
        "INPUT.SIZE_TRAIN",
        list(size),
        "INPUT.SIZE_TEST",
        list(size),
        "MODEL.STRIDE_SIZE",
        list(stride),
        *NO_CAMERA,
    )
    images = draw(1, size)
    with torch.no_grad():
        patches, class_token = backbone(images, torch.tensor([0, 1, 2]))
        expected = exact(backbone.vit).forward_features(images.double())
    assert patches.shape == (3, backbone.num_patches, backbone.width)
    assert_close(
        torch.cat([class_token[:, None], patches], dim=1), expected, *path_lengths(backbone)
    )
    assert backbone.camera_embedding is None


@torch.no_grad()
def test_camera_reaches_all_tokens(weight=3.0):
    backbone = build("MODEL.SIE_COE", weight)
    images, cameras = draw(4, (64, 32)), torch.tensor([3, 0, 3])
    with without_blocks(backbone):
        patches, class_token = backbone(images, cameras)
    assert backbone.camera_embedding.shape == (CAMERAS, 1, backbone.width)

    vit = backbone.vit
    tokens = (
        torch.cat([vit.cls_token.expand(3, -1, -1), unfold_patches(vit, images, (8, 8))[0]], dim=1)
        + vit.pos_embed
    )
    camera = torch.stack([backbone.camera_embedding[camera, 0] for camera in cameras.tolist()])
    expected = normalise(tokens + weight * camera[:, None].double(), vit.norm, 1e-6)
    assert_close(
        torch.cat([class_token[:, None], patches], dim=1), expected, 3 * 8**2, backbone.width
    )


def test_a_single_camera_needs_no_embedding():
    assert build(cameras=1).camera_embedding is None
    assert build(cameras=2).camera_embedding is not None


def drop_rates(backbone):
    return [
        rate
        for block in backbone.vit.blocks
        for rate in (
            getattr(block.drop_path1, "drop_prob", 0.0),
            getattr(block.drop_path2, "drop_prob", 0.0),
        )
    ]


def test_drop_path_acts_in_training_only():
    backbone = build("MODEL.DROP_PATH", 0.5)
    images, cameras = draw(7, (64, 32)), torch.tensor([0, 1, 2])
    with torch.no_grad():
        assert torch.equal(backbone(images, cameras)[0], backbone(images, cameras)[0])
        backbone.train()
        assert not torch.equal(backbone(images, cameras)[0], backbone(images, cameras)[0])


def test_clips_tower():
    backbone = clip_model().backbone
    assert load_cfg(CLIP_CONFIG).MODEL.DROP_PATH > 0
    assert drop_rates(backbone) == [0.0] * 24
    assert sum(parameter.numel() for parameter in backbone.vit.parameters()) == 86_140_416
    assert (backbone.width, backbone.num_patches, tuple(backbone.grid_size)) == (512, 128, (16, 8))


@pytest.mark.parametrize(
    "name",
    [
        "test_vit2",
        "deit_tiny_distilled_patch16_224",
        "vit_medium_patch16_rope_reg1_gap_256",
    ],
)
def test_models_without_the_needed_tokens_are_refused(name):
    with pytest.raises(UserError, match=f"MODEL.TRANSFORMER_TYPE.*{name}"), torch.device("meta"):
        make_backbone(tiny_cfg("MODEL.TRANSFORMER_TYPE", name), CAMERAS)


def small_images(name):
    return load_cfg(
        None,
        [
            "MODEL.TRANSFORMER_TYPE",
            name,
            "INPUT.SIZE_TRAIN",
            "[32, 16]",
            "INPUT.SIZE_TEST",
            "[32, 16]",
        ],
    )


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_small_patch16_18x2_224"])
def test_other_vision_transformers_run(name):
    """DeiT has a module of its own in timm; the blocks of the other have their attention deeper inside."""
    backbone = make_backbone(small_images(name), 2)
    tokens, class_token = backbone(draw(0, (32, 16)), torch.tensor([0, 1, 0]))
    assert tokens.shape == (3, 2, backbone.vit.embed_dim) and class_token.shape == (
        3,
        backbone.vit.embed_dim,
    )
    assert {
        module.fused_attn for module in backbone.modules() if hasattr(module, "fused_attn")
    } == {True}
