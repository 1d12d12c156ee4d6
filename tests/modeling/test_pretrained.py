"""Published weights of Vision Transformers, from every container into the backbone; what does not fit, and timm's hub."""

import copy
import math
from functools import lru_cache, partial

import huggingface_hub
import pytest
import torch
from timm.models.vision_transformer import _convert_openai_clip
from tiny import CAMERAS, equal, tiny_cfg
from torch import nn
from triplets import catch_message
from weight_files import (
    classifier_weights,
    hub_cache,
    random_tensors,
    save_safetensors,
    save_torch,
    timm_weights,
)

from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained, resize_position

pytestmark = pytest.mark.usefixtures("shallow")
BLOCKS = 2
"""Of the twelve, whose names and shapes are alike."""


def save_torch_before_zip(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


def tree(weights):
    """A module that holds tensors under their names."""
    root = nn.Module()
    for name, tensor in weights.items():
        *path, leaf = name.split(".")
        node = root
        for child in path:
            if child not in node._modules:
                node.add_module(child, nn.Module())
            node = node._modules[child]
        node.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
    return root


def save_archive(weights, path):
    """As OpenAI publishes CLIP: a TorchScript archive."""
    torch.jit.script(tree(weights)).save(str(path))


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
    "a run": (
        IMAGENET,
        partial(timm_weights, IMAGENET),
        "state_dict",
        "w.pth.tar",
        save_torch_before_zip,
    ),
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
    if "visual.proj" in weights:
        weights = _convert_openai_clip(weights, None)
    expected = {name: tensor.float() for name, tensor in weights.items()}
    expected["pos_embed"] = resize_position(expected["pos_embed"], GRIDS[stride])
    for name, tensor in state.items():
        assert tensor.dtype is torch.float32 and torch.equal(tensor, expected[name]), name
    # All blocks and what is before and after them; no classifier, text tower or bias of a head.
    assert len(state) == 12 * BLOCKS + (8 if kind == CLIP else 6)
    assert report == f"pretrained weights {path}: {len(state)} of {len(state)} tensors loaded"


def vit_b_32(seed):
    weights = openai_weights(seed)
    return {**weights, "visual.conv1.weight": torch.zeros(768, 3, 32, 32, dtype=torch.float16)}


@pytest.mark.parametrize(
    "kind, make",
    [(IMAGENET, openai_weights), (CLIP, REAL["timm's state dict"][1]), (CLIP, vit_b_32)],
    ids=["CLIP's for ImageNet's", "ImageNet's for CLIP's", "larger patches"],
)
def test_another_model_of_which_most_fits_is_refused(kind, make, tmp_path):
    torch.save(make(99), tmp_path / "w.pth")
    backbone = real_backbone(kind, 12)
    before = backbone.vit.blocks[0].mlp.fc1.weight.clone()
    text = catch_message(lambda: load_pretrained(backbone, kind, str(tmp_path / "w.pth")))
    assert f"another model than {kind}" in text
    # Bit for bit: the backbone's weights are whatever was in memory, also what is not a number.
    after = backbone.vit.blocks[0].mlp.fc1.weight
    assert torch.equal(after.view(torch.int32), before.view(torch.int32))


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
    assert report == f"pretrained weights hub: {len(state)} of {len(state)} tensors loaded"


# Of small backbones


def tiny_backbone(*opts):
    torch.manual_seed(2)
    return make_backbone(tiny_cfg(*opts), CAMERAS)


@pytest.mark.parametrize(
    ("side", "size"), [(6, [48, 48]), (8, [128, 32])], ids=["the same grid", "a grid of as many"]
)
def test_positions_of_a_square_are_resized_unless_the_grid_is_the_same(tmp_path, side, size):
    backbone, weights = (
        tiny_backbone("INPUT.SIZE_TRAIN", size, "INPUT.SIZE_TEST", size),
        classifier_weights(side),
    )
    torch.save(weights, tmp_path / "w.pth")
    load_pretrained(backbone, "test_vit", str(tmp_path / "w.pth"))
    expected = resize_position(weights["pos_embed"], (16, 4)) if side == 8 else weights["pos_embed"]
    assert torch.equal(backbone.vit.pos_embed, expected)


def test_what_does_not_fit_is_reported_and_left_alone(tmp_path):
    backbone, weights = tiny_backbone(), classifier_weights(6)
    before = copy.deepcopy(backbone.vit.state_dict())
    left = ["blocks.0.norm1.bias", "norm.weight"]
    del weights["norm.weight"]
    weights["blocks.0.norm1.bias"] = torch.ones(7)
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(backbone, "test_vit", str(tmp_path / "w.pth"))
    for name, tensor in backbone.vit.state_dict().items():
        assert torch.equal(tensor, before[name]) == (name in left)
    assert report.startswith("WARNING: incomplete") and report.endswith(f"not {', '.join(left)}")


@pytest.mark.parametrize("source", ["", "none"])
def test_random_weights_are_said_and_warned_of_unless_they_are_meant(source):
    backbone = tiny_backbone()
    before = copy.deepcopy(backbone.state_dict())
    report = load_pretrained(backbone, "test_vit", source)
    assert "random" in report.lower() and report.startswith("WARNING: ") == (not source)
    assert equal(backbone.state_dict(), before)


class Scaled(nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * tokens


MISTAKES = {
    "no file": lambda path: None,
    "a web page": lambda path: path.write_bytes(b"<!DOCTYPE html><html>404 Not Found</html>"),
    "a program": lambda path: torch.jit.script(Scaled()).save(str(path)),
    "other names": lambda path: torch.save({"conv1.weight": torch.ones(3)}, path),
    "other shapes": lambda path: torch.save({"norm.weight": torch.ones(3)}, path),
}


@pytest.mark.parametrize("make", MISTAKES.values(), ids=MISTAKES)
def test_a_file_that_does_not_serve_is_named_and_the_backbone_left_as_it_was(tmp_path, make):
    make(tmp_path / "w.pt")
    backbone = tiny_backbone()
    before = copy.deepcopy(backbone.vit.state_dict())
    text = catch_message(lambda: load_pretrained(backbone, "test_vit", str(tmp_path / "w.pt")))
    assert str(tmp_path / "w.pt") in text
    assert equal(backbone.vit.state_dict(), before)
