"""Published weights of ViT-B/16, at their real names and shapes, from every container into the backbone; timm's hub."""

import math
from functools import lru_cache, partial

import huggingface_hub
import pytest
import torch
from timm.models.vision_transformer import _convert_openai_clip
from tiny import CAMERAS
from weight_files import (
    hub_cache,
    random_tensors,
    save_archive,
    save_safetensors,
    save_torch,
    timm_weights,
)

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained, resize_position

pytestmark = pytest.mark.usefixtures("shallow")
BLOCKS = 2
"""Of the twelve, whose names and shapes are alike."""


def openai_weights(seed):
    """CLIP ViT-B/16 as OpenAI publishes it: float16, the image tower under visual., the text tower beside it."""
    shapes = {
        "positional_embedding": (77, 512),
        "text_projection": (512, 512),
        "logit_scale": (),
        "visual.class_embedding": (768,),
        "visual.positional_embedding": (197, 768),
        "visual.proj": (768, 512),
        "visual.conv1.weight": (768, 3, 16, 16),
        "token_embedding.weight": (49, 512),
    }
    for tower, width, norms in (("visual.", 768, ("ln_pre", "ln_post")), ("", 512, ("ln_final",))):
        layers = dict.fromkeys(norms, (width,))
        for block in range(BLOCKS if tower else 1):
            prefix = f"transformer.resblocks.{block}"
            layers |= {f"{prefix}.ln_1": (width,), f"{prefix}.ln_2": (width,)}
            layers[f"{prefix}.attn.out_proj"] = (width, width)
            layers[f"{prefix}.mlp.c_fc"] = (4 * width, width)
            layers[f"{prefix}.mlp.c_proj"] = (width, 4 * width)
            shapes[f"{tower}{prefix}.attn.in_proj_weight"] = (3 * width, width)
            shapes[f"{tower}{prefix}.attn.in_proj_bias"] = (3 * width,)
        for name, shape in layers.items():
            shapes |= {f"{tower}{name}.weight": shape, f"{tower}{name}.bias": shape[:1]}
    return random_tensors(shapes, seed, torch.half)


CLIP, IMAGENET = "ViT-B-16", "vit_base_patch16_224"
TIMMS_CLIP = "vit_base_patch16_clip_quickgelu_224"
HALF = partial(timm_weights, dtype=torch.half)
REAL = {  # backbone, weights of a seed, key above them in the file, file, and how it is written
    "OpenAI's archive": (CLIP, openai_weights, None, "ViT-B-16.pt", save_archive),
    "OpenAI's state dict": (CLIP, openai_weights, None, "ViT-B-16.pt", save_torch),
    "timm's CLIP": (CLIP, partial(HALF, TIMMS_CLIP), None, "w.safetensors", save_safetensors),
    "timm's state dict": (IMAGENET, partial(timm_weights, IMAGENET), None, "w.pth", save_torch),
    "DeiT": (
        IMAGENET,
        partial(timm_weights, "deit_base_patch16_224"),
        "model",
        "w.pth",
        save_torch,
    ),
    "a run": (IMAGENET, partial(timm_weights, IMAGENET), "state_dict", "w.pth.tar", save_torch),
    "safetensors": (IMAGENET, partial(HALF, IMAGENET), None, "w.safetensors", save_safetensors),
}
GRIDS = {16: (16, 8), 12: (21, 10)}
"""Of 256×128 images, by stride; the weights have 14×14."""


@lru_cache(maxsize=1)
def real_backbone(name, stride):
    """A backbone with whatever is in memory: what is not loaded into it shows."""
    cfg = load_cfg(
        None, ["MODEL.TRANSFORMER_TYPE", name, "MODEL.STRIDE_SIZE", f"[{stride}, {stride}]"]
    )
    with torch.device("meta"):
        backbone = make_backbone(cfg, CAMERAS)
    return backbone.to_empty(device="cpu")


def expected_weights(weights, grid):
    """The tensors of the file as the backbone must hold them, by their names there."""
    if "visual.proj" in weights:
        weights = _convert_openai_clip(weights, None)
    expected = {name: tensor.float() for name, tensor in weights.items()}
    return expected | {"pos_embed": resize_position(expected["pos_embed"], grid)}


PLAIN = ("OpenAI's state dict", "timm's state dict")


# In this order each backbone is made once; the seeds differ, so that nothing of the last file passes for the next one's. The
# stride does not know of containers: one of each kind of backbone meets both.
@pytest.mark.parametrize(
    "seed, stride, case",
    [
        (seed, stride, case)
        for seed, (kind, stride, case) in enumerate(
            (kind, stride, case)
            for kind in (CLIP, IMAGENET)
            for stride in GRIDS
            for case in REAL
            if REAL[case][0] == kind and (stride == 16 or case in PLAIN)
        )
    ],
)
def test_published_weights(seed, stride, case, tmp_path):
    kind, make, container, file, save = REAL[case]
    backbone, weights, path = real_backbone(kind, stride), make(seed), tmp_path / file
    save({container: weights, "epoch": 300} if container else weights, path)
    report = load_pretrained(backbone, kind, str(path))
    path.unlink()  # pytest keeps folders, and safetensors are large
    state = backbone.vit.state_dict()
    assert backbone.grid_size == GRIDS[stride] and state["pos_embed"].shape == (
        1,
        1 + math.prod(GRIDS[stride]),
        768,
    )
    expected = expected_weights(weights, GRIDS[stride])
    for name, tensor in state.items():
        assert tensor.dtype is torch.float32 and torch.equal(tensor, expected[name]), name
    # All blocks and what is before and after them; no classifier, text tower or bias of a head.
    assert len(state) == 12 * BLOCKS + (8 if kind == CLIP else 6)
    assert report == (
        f"pretrained weights {path}: {len(state)} of {len(state)} tensors loaded, 1 resized (pos_embed), "
        "0 missing"
    )


def vit_b_32(seed):
    weights = openai_weights(seed)
    return {**weights, "visual.conv1.weight": torch.zeros(768, 3, 32, 32, dtype=torch.float16)}


@pytest.mark.parametrize(
    "kind, make, reason",
    [
        (IMAGENET, openai_weights, "norm_pre.weight"),
        (CLIP, REAL["timm's state dict"][1], "norm_pre.weight"),
        (CLIP, vit_b_32, "patch_embed.proj.weight"),
    ],
    ids=["CLIP's for ImageNet's", "ImageNet's for CLIP's", "larger patches"],
)
def test_another_model_of_which_most_fits_is_refused(kind, make, reason, tmp_path):
    torch.save(make(99), tmp_path / "w.pth")
    backbone = real_backbone(kind, 12)
    before = backbone.vit.blocks[0].mlp.fc1.weight.clone()
    with pytest.raises(UserError, match=f"another model than {kind}, with another {reason}"):
        load_pretrained(backbone, kind, str(tmp_path / "w.pth"))
    # Bit for bit: the backbone's weights are whatever was in memory, also what is not a number.
    assert torch.equal(
        backbone.vit.blocks[0].mlp.fc1.weight.view(torch.int32), before.view(torch.int32)
    )


def test_hub_with_weights_that_were_downloaded_before(tmp_path, monkeypatch):
    weights = hub_cache(tmp_path, "test_vit")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    cfg = load_cfg(None, ["MODEL.TRANSFORMER_TYPE", "test_vit"])  # 256×128 images, patches of 16
    backbone = make_backbone(cfg, CAMERAS)
    report = load_pretrained(backbone, "test_vit", "hub")
    state = backbone.vit.state_dict()
    for name, tensor in state.items():
        expected = resize_position(weights[name], (16, 8)) if name == "pos_embed" else weights[name]
        assert torch.equal(tensor, expected), name
    assert (
        report
        == f"pretrained weights hub: {len(state)} of {len(state)} tensors loaded, 1 resized (pos_embed), 0 missing"
    )
