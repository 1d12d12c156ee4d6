"""Backbones with registers, without a position of the class token, and with rotary positions, beside timm's own forward."""

import pytest
import timm
import torch
from numeric import assert_close, generator, shift_seed
from tiny import (
    CAMERAS,
    DINOV3,
    EVA02,
    MIXED,
    REGISTERS,
    backbone_cfg,
    disturb,
    exact,
    patch_side,
    sums_of_a_backbone,
    tiny_cfg,
)

from demo_sdtps.config import UserError
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained, resize_position

pytestmark = pytest.mark.usefixtures("shallow")

DINOV2 = "vit_small_patch14_dinov2"
PREFIX = {DINOV2: 1, REGISTERS: 5, "deit3_small_patch16_224": 1, EVA02: 1, DINOV3: 5, MIXED: 1}
"""Class token and registers."""
BACKBONES = pytest.mark.parametrize("name", PREFIX)


def path_lengths(backbone):
    """Lengths of the sums from images to tokens."""
    vit = backbone.vit
    tokens = vit.num_prefix_tokens + backbone.num_patches
    return sums_of_a_backbone(
        vit.embed_dim,
        vit.blocks[0].attn.num_heads,
        tokens,
        len(vit.blocks),
        vit.patch_embed.patch_size[0],
    )


def build(name, *opts, stride=None, cameras=CAMERAS):
    torch.manual_seed(shift_seed())
    return disturb(make_backbone(backbone_cfg(name, *opts, stride=stride), cameras)).train()


def draw(name, batch=2):
    side = patch_side(name)
    return torch.randn(batch, 3, 3 * side, 2 * side, generator=generator(1))


def without_registers(tokens, count):
    return torch.cat([tokens[:, :1], tokens[:, count:]], dim=1)


@BACKBONES
def test_values_and_gradients_are_timms(name):
    backbone, images = build(name, "MODEL.SIE_CAMERA", "False"), draw(name)
    patches, class_token = backbone(images, torch.tensor([0, 1]))
    assert patches.shape == (2, 6, backbone.width) and backbone.grid_size == (3, 2)
    actual = torch.cat([class_token[:, None], patches], dim=1)
    vit = exact(backbone.vit)
    expected = without_registers(vit.forward_features(images.double()), PREFIX[name])
    assert_close(actual, expected, *path_lengths(backbone))
    probe = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad((tokens * probe.to(tokens.dtype)).sum(), list(module.parameters()))
        for tokens, module in ((actual, backbone.vit), (expected, vit))
    ]
    for (key, _), ours, theirs in zip(vit.named_parameters(), *gradients, strict=True):
        assert theirs.abs().max() > 0, key
        assert_close(
            ours,
            theirs,
            *path_lengths(backbone),
            *path_lengths(backbone),
            len(actual.flatten(0, 1)),
        )


@pytest.mark.parametrize("stride", [(7, 5), (9, 14)], ids=str)
@pytest.mark.parametrize("name", [REGISTERS, EVA02, DINOV3, MIXED])
def test_overlapping_patches_are_timms_of_an_image_that_holds_them_side_by_side(name, stride):
    """Patches and their positions, rotary ones too: rows and columns of the grid, whatever the stride."""
    backbone, images, side = (
        build(name, "MODEL.SIE_CAMERA", "False", stride=stride).eval(),
        draw(name),
        patch_side(name),
    )
    # (B, 3, rows, columns, side, side)
    windows = images.unfold(2, side, stride[0]).unfold(3, side, stride[1])
    rows, columns = windows.shape[2:4]
    assert (
        backbone.grid_size == (rows, columns) == (2 * side // stride[0] + 1, side // stride[1] + 1)
    )
    reference = timm.create_model(
        name,
        num_classes=0,
        global_pool="",
        img_size=(rows * side, columns * side),
        dynamic_img_size=False,
    ).eval()
    reference.load_state_dict(backbone.vit.state_dict())
    reference.double()
    with torch.no_grad():
        patches, class_token = backbone(images, torch.tensor([0, 1]))
        side_by_side = windows.transpose(3, 4).reshape(2, 3, rows * side, columns * side).double()
        expected = without_registers(reference.forward_features(side_by_side), PREFIX[name])
    assert_close(
        torch.cat([class_token[:, None], patches], dim=1), expected, *path_lengths(backbone)
    )


@torch.no_grad()
@pytest.mark.parametrize("name", [DINOV2, REGISTERS, EVA02, DINOV3])
def test_camera_reaches_all_tokens_registers_too(name):
    backbone, images, cameras = (
        build(name, "MODEL.SIE_COE", "2.0"),
        draw(name),
        torch.tensor([3, 1]),
    )
    embeddings = []
    backbone.vit.pos_drop.register_forward_pre_hook(
        lambda module, inputs: embeddings.append(inputs[0])
    )
    backbone(images, cameras)
    (actual,), camera = embeddings, backbone.camera_embedding
    backbone.camera_embedding = None
    backbone(images, cameras)
    assert actual.shape == (2, PREFIX[name] + 6, backbone.vit.embed_dim)
    assert_close(
        actual - embeddings[1],
        (2 * camera[cameras].double()).expand_as(actual),
        *4 * (1,),
        scale=float(actual.abs().max()),
    )


@torch.no_grad()
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_share_of_the_training_batches_has_the_mean_embedding(share):
    backbone, images = build(DINOV2, "MODEL.SIE_UNKNOWN", str(share)), draw(DINOV2)
    cameras, unknown = torch.tensor([3, 1]), torch.full((2,), CAMERAS)
    embedded = [backbone.embed(images, cameras) for _ in range(60)]
    known, mean = (backbone.eval().embed(images, labels) for labels in (cameras, unknown))
    counts = [sum(torch.equal(each, one) for each in embedded) for one in (known, mean)]
    assert sum(counts) == 60 and 15 <= counts[0] - 30 * (share == 0) <= 45
    backbone.camera_embedding[:] = backbone.camera_embedding.mean(dim=0)
    assert_close(mean, backbone.embed(images, cameras).double(), CAMERAS, 1)


def test_a_single_camera_needs_no_embedding():
    for cameras in (1, 2):
        backbone = make_backbone(tiny_cfg(), cameras)
        assert (backbone.camera_embedding is None) == (cameras == 1)


@pytest.mark.parametrize(
    "name", ["test_vit2", "deit_tiny_distilled_patch16_224", "vit_medium_patch16_rope_reg1_gap_256"]
)
def test_models_without_the_needed_tokens_are_refused(name):
    with pytest.raises(UserError, match=f"MODEL.TRANSFORMER_TYPE.*{name}"), torch.device("meta"):
        make_backbone(tiny_cfg("MODEL.TRANSFORMER_TYPE", name), CAMERAS)


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_small_patch16_18x2_224"])
def test_other_vision_transformers_run(name):
    """DeiT has a module of its own in timm; the blocks of the other have their attention deeper inside."""
    backbone = make_backbone(backbone_cfg(name), 2)
    tokens, class_token = backbone(draw(name), torch.tensor([0, 1]))
    assert tokens.shape == (2, 6, backbone.width) and class_token.shape == (2, backbone.width)
    attentions = [module for module in backbone.modules() if hasattr(module, "fused_attn")]
    assert attentions and all(attention.fused_attn for attention in attentions)


@BACKBONES
def test_weights_under_timms_names(name, tmp_path):
    """For square images, as timm's hub holds them."""
    torch.manual_seed(5)
    sizes = {"img_size": 4 * patch_side(name), "dynamic_img_size": False, "num_classes": 7}
    published = timm.create_model(name, **sizes).state_dict()
    weights = {key: torch.randn_like(tensor) for key, tensor in published.items()}
    backbone = make_backbone(backbone_cfg(name), CAMERAS)
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(backbone, name, str(tmp_path / "w.pth"))
    state = backbone.vit.state_dict()
    for key, tensor in state.items():
        expected = weights[key if key in weights else key.replace("norm.", "fc_norm.")]
        if key == "pos_embed":
            expected = resize_position(expected, (3, 2), expected.shape[1] - 16)
        assert torch.equal(tensor, expected), key
    assert report.endswith(f"w.pth: {len(state)} of {len(state)} tensors loaded")
