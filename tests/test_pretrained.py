"""Pretrained weights from every container into the trunk."""
import math
import re
import struct
from functools import lru_cache

import pytest
import safetensors.torch
import timm
import torch
from golden_cases import load_case, relative_error
from tiny import CAMERAS, clip_model, tiny_cfg
from torch import nn

from config import UserError
from modeling.pretrained import load_pretrained, read_weights, resize_position
from modeling.trunk import Trunk


def test_golden_position_resize():
    case = load_case("position_resize")
    resized = resize_position(case.arrays["position_embedding"][None], tuple(case.settings["grid"]))
    assert resized.shape == (1, 129, 24)
    assert relative_error(resized[0], case.arrays["resized"]) < 1e-6


@pytest.mark.parametrize("count", [1 + 14 * 14 + 1, 1 + 16 * 8, 196])
def test_position_embedding_of_no_square_grid(count):
    assert "square" in message(lambda: resize_position(torch.zeros(1, count, 8), (16, 8)))


def message(action):
    """The text of the UserError that `action` raises: one sentence on one line."""
    with pytest.raises(UserError) as caught:
        action()
    text = str(caught.value)
    assert re.fullmatch(r"[^\n]+\.", text)
    return text


def tiny_trunk(*opts):
    torch.manual_seed(2)
    return Trunk(tiny_cfg(*opts), CAMERAS)


@lru_cache
def classifier_weights(seed, side):
    torch.manual_seed(seed)
    vit = timm.create_model("test_vit", pretrained=False, num_classes=10, img_size=8 * side, patch_size=8)
    return {name: torch.randn_like(tensor) for name, tensor in vit.state_dict().items()}


def pretrained_timm(seed=3, side=6):
    """Weights of a classifier like the tiny trunk, for square pictures: side² patches and a head for ten classes."""
    return dict(classifier_weights(seed, side))


def assert_loaded(trunk, weights, but=()):
    """Every tensor of the tiny trunk is the one of its name, the position embedding resized from its square."""
    for name, tensor in trunk.vit.state_dict().items():
        if name not in but:
            expected = resize_position(weights[name], (8, 4)) if name == "pos_embed" else weights[name].float()
            assert torch.equal(tensor, expected), name


def save_torch(content, path):
    torch.save(content, path)


def save_torch_before_zip(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


FORMATS = {
    "state dict": ("w.pth", save_torch, None),
    "state dict of old": ("w.pth", save_torch_before_zip, None),
    "model": ("w.pth", save_torch, "model"),
    "state_dict": ("w.pth.tar", save_torch, "state_dict"),
    "safetensors": ("w.safetensors", safetensors.torch.save_file, None),
}


@pytest.mark.parametrize("file, save, container", FORMATS.values(), ids=FORMATS)
def test_load_timms_names(file, save, container, tmp_path):
    trunk, weights, path = tiny_trunk(), pretrained_timm(), tmp_path / file
    camera_embedding = trunk.camera_embedding.clone()
    save({container: weights, "epoch": 3} if container else weights, path)
    report = load_pretrained(trunk, "test_vit", str(path))
    assert_loaded(trunk, weights)
    assert torch.equal(trunk.camera_embedding, camera_embedding)
    total = len(trunk.vit.state_dict())
    assert f"{total} of {total} tensors loaded, 1 resized (pos_embed), 0 missing" in report
    assert str(path) in report


def test_load_float16(tmp_path):
    trunk = tiny_trunk()
    weights = {name: tensor.half() for name, tensor in pretrained_timm().items()}
    torch.save(weights, tmp_path / "w.pth")
    load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth"))
    assert all(tensor.dtype is torch.float32 for tensor in trunk.vit.state_dict().values())
    assert_loaded(trunk, {name: tensor.float() for name, tensor in weights.items()})


def test_positions_of_the_same_grid_stay_as_they_are(tmp_path):
    trunk = tiny_trunk("INPUT.SIZE_TRAIN", [48, 48], "INPUT.SIZE_TEST", [48, 48])
    weights = pretrained_timm()
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth"))
    assert torch.equal(trunk.vit.pos_embed, weights["pos_embed"])
    assert "0 resized," in report


def test_positions_of_a_square_are_resized_to_a_grid_of_as_many(tmp_path):
    trunk = tiny_trunk("INPUT.SIZE_TRAIN", [128, 32], "INPUT.SIZE_TEST", [128, 32])
    weights = pretrained_timm(side=8)
    torch.save(weights, tmp_path / "w.pth")
    load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth"))
    assert torch.equal(trunk.vit.pos_embed, resize_position(weights["pos_embed"], (16, 4)))


def test_what_does_not_fit_is_reported_and_left_alone(tmp_path):
    trunk, weights = tiny_trunk(), pretrained_timm()
    before = {name: tensor.clone() for name, tensor in trunk.vit.state_dict().items()}
    missing = ["blocks.0.norm1.bias", "norm.weight"]
    del weights["norm.weight"]
    weights["blocks.0.norm1.bias"] = torch.ones(7)
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth"))
    assert_loaded(trunk, weights, but=missing)
    for name in missing:
        assert torch.equal(trunk.vit.state_dict()[name], before[name])
    assert f"{len(before) - 2} of {len(before)} tensors loaded" in report
    assert "2 missing (blocks.0.norm1.bias, norm.weight)" in report


class Part(nn.Module):
    """A few of the trunk's tensors under their names."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 64))
        self.norm = nn.LayerNorm(64)
        nn.init.normal_(self.norm.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(tokens + self.cls_token)


@pytest.fixture
def archive(tmp_path):
    torch.manual_seed(4)
    part = Part()
    torch.jit.script(part).save(str(tmp_path / "w.pt"))
    return part, tmp_path / "w.pt"


def test_load_torchscript(archive):
    part, path = archive
    trunk = tiny_trunk()
    total = len(trunk.vit.state_dict())
    report = load_pretrained(trunk, "test_vit", str(path))
    for name, tensor in part.state_dict().items():
        assert torch.equal(trunk.vit.state_dict()[name], tensor), name
    assert f"3 of {total} tensors loaded, 0 resized, {total - 3} missing" in report


def openai_weights(seed):
    """CLIP ViT-B/16 as OpenAI publishes it: float16, the image tower under visual., the text tower beside it."""
    shapes = {"positional_embedding": (77, 512), "text_projection": (512, 512), "logit_scale": (),
              "visual.class_embedding": (768,), "visual.positional_embedding": (197, 768), "visual.proj": (768, 512),
              "visual.conv1.weight": (768, 3, 16, 16), "token_embedding.weight": (49, 512)}
    for tower, width, norms in (("visual.", 768, ("ln_pre", "ln_post")), ("", 512, ("ln_final",))):
        for norm in norms:
            shapes |= {f"{tower}{norm}.weight": (width,), f"{tower}{norm}.bias": (width,)}
        for block in range(12 if tower else 1):
            prefix = f"{tower}transformer.resblocks.{block}"
            for name, *weight in (("ln_1", width), ("ln_2", width), ("attn.out_proj", width, width),
                                  ("mlp.c_fc", 4 * width, width), ("mlp.c_proj", width, 4 * width)):
                shapes |= {f"{prefix}.{name}.weight": tuple(weight), f"{prefix}.{name}.bias": (weight[0],)}
            shapes |= {f"{prefix}.attn.in_proj_weight": (3 * width, width), f"{prefix}.attn.in_proj_bias": (3 * width,)}
    # Overlapping stretches of the same numbers: each tensor is another, and the file is small.
    numbers = (torch.rand(2_400_000, generator=torch.Generator().manual_seed(seed)) - 0.5).half()
    return {name: numbers[offset:offset + math.prod(shape)].view(shape) for offset, (name, shape) in enumerate(shapes.items())}


def openai_name(name):
    """OpenAI's name of one of timm's tensors."""
    top = {"cls_token": "class_embedding", "pos_embed": "positional_embedding", "patch_embed.proj.weight": "conv1.weight",
           "head.weight": "proj", "norm_pre.weight": "ln_pre.weight", "norm_pre.bias": "ln_pre.bias",
           "norm.weight": "ln_post.weight", "norm.bias": "ln_post.bias"}
    inner = {"norm1": "ln_1", "norm2": "ln_2", "attn.proj": "attn.out_proj", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
    if name in top:
        return f"visual.{top[name]}"
    _, block, rest = name.split(".", 2)
    layer, _, leaf = rest.rpartition(".")
    theirs = f"attn.in_proj_{leaf}" if layer == "attn.qkv" else f"{inner[layer]}.{leaf}"
    return f"visual.transformer.resblocks.{block}.{theirs}"


def test_load_openais_clip(tmp_path):
    trunk = clip_model().trunk
    before = {name: tensor.clone() for name, tensor in trunk.vit.state_dict().items()}
    weights = openai_weights(seed=5)
    torch.save(weights, tmp_path / "ViT-B-16.pt")
    try:
        report = load_pretrained(trunk, "ViT-B-16", str(tmp_path / "ViT-B-16.pt"))
        for name, tensor in trunk.vit.state_dict().items():
            expected = weights[openai_name(name)].float()
            if name == "pos_embed":
                expected = resize_position(expected[None], (16, 8))
            elif name == "head.weight":
                expected = expected.T
            assert torch.equal(tensor, expected.reshape(tensor.shape)), name
            assert tensor.dtype is torch.float32
    finally:
        trunk.vit.load_state_dict(before)
    assert f"{len(before)} of {len(before)} tensors loaded, 1 resized (pos_embed), 0 missing" in report
    assert len(before) == sum(name.startswith("visual.") for name in weights)


def test_no_source_is_said_loudly():
    trunk = tiny_trunk()
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    assert "RANDOM" in load_pretrained(trunk, "test_vit", "")
    assert all(torch.equal(tensor, before[name]) for name, tensor in trunk.state_dict().items())


def load_error(path):
    """What load_pretrained says of the file, which it must name; the trunk is left as it was."""
    trunk = tiny_trunk()
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    text = message(lambda: load_pretrained(trunk, "test_vit", str(path)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in trunk.state_dict().items())
    assert "MODEL.PRETRAIN_PATH_T" in text and str(path) in text
    return text


def test_missing_file(tmp_path):
    assert "does not exist" in load_error(tmp_path / "w.pth")
    assert "does not exist" in load_error(tmp_path)


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><html>404 Not Found</html>", b"PK\x03\x04 no archive",
                                     struct.pack("<Q", 2**40) + b"{}"], ids=["empty", "web page", "zip", "header"])
@pytest.mark.parametrize("file", ["w.pth", "w.safetensors"])
def test_no_weights_file(file, content, tmp_path):
    (tmp_path / file).write_bytes(content)
    assert "damaged" in load_error(tmp_path / file)


@pytest.mark.parametrize("kept", [0.001, 0.3, 0.99])
@pytest.mark.parametrize("kind", ["state dict", "state dict of old", "safetensors"])
def test_truncated_file(kind, kept, tmp_path):
    file, save, _ = FORMATS[kind]
    path = tmp_path / file
    save(pretrained_timm(), path)
    path.write_bytes(path.read_bytes()[:int(kept * path.stat().st_size)])
    text = message(lambda: read_weights(path))
    assert "damaged" in text and str(path) in text


def test_state_dict_of_old_truncated_anywhere(tmp_path):
    path = tmp_path / "w.pth"
    save_torch_before_zip({"norm.weight": torch.ones(3)}, path)
    content = path.read_bytes()
    found = {}
    for kept in range(len(content)):
        path.write_bytes(content[:kept])
        try:
            read_weights(path)
            found[kept] = "read"
        except Exception as error:
            found[kept] = type(error).__name__
    assert {kept: what for kept, what in found.items() if what != "UserError"} == {}


def test_truncated_torchscript(archive):
    _, path = archive
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
    assert "damaged" in load_error(path)


@pytest.mark.parametrize("content", [torch.ones(3), [torch.ones(3)]], ids=["tensor", "list"])
def test_file_that_holds_no_mapping(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    load_error(tmp_path / "w.pth")


def test_whole_pickled_module(tmp_path):
    """It cannot be read without running its code."""
    torch.save(Part(), tmp_path / "w.pth")
    load_error(tmp_path / "w.pth")


@pytest.mark.parametrize("weights", [{"conv1.weight": torch.ones(3)}, {"norm.weight": torch.ones(3)}, {}],
                         ids=["names", "shapes", "none"])
def test_weights_that_do_not_fit_at_all(weights, tmp_path):
    torch.save(weights, tmp_path / "w.pth")
    text = load_error(tmp_path / "w.pth")
    assert "test_vit" in text
    assert next(iter(weights), "nothing") in text


def test_position_embedding_of_no_square_grid_in_a_file(tmp_path):
    trunk, weights = tiny_trunk(), pretrained_timm()
    weights["pos_embed"] = torch.randn(1, 1 + 30, 64)
    torch.save(weights, tmp_path / "w.pth")
    assert "31 entries" in message(lambda: load_pretrained(trunk, "test_vit", str(tmp_path / "w.pth")))
