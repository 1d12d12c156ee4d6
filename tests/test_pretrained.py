"""Pretrained weights from every container into the backbone."""
from functools import lru_cache

import pytest
import safetensors.torch
import timm
import torch
from tiny import CAMERAS, tiny_cfg
from torch import nn
from weight_files import message, save_archive, save_torch, save_torch_before_zip

from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.pretrained import load_pretrained, read_source, read_weights, resize_position

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning")


def tiny_backbone(*opts):
    torch.manual_seed(2)
    return make_backbone(tiny_cfg(*opts), CAMERAS)


@lru_cache
def classifier_weights(seed, side):
    torch.manual_seed(seed)
    vit = timm.create_model("test_vit", pretrained=False, num_classes=10, img_size=8 * side, patch_size=8)
    return {name: torch.randn_like(tensor) for name, tensor in vit.state_dict().items()}


def pretrained_timm(seed=3, side=6):
    """Weights of a classifier like the tiny backbone, for square images: side² patches and a head for ten classes."""
    return dict(classifier_weights(seed, side))


def assert_loaded(backbone, weights, but=()):
    """Every tensor of the tiny backbone is the one of its name, the position embedding resized from its square."""
    for name, tensor in backbone.vit.state_dict().items():
        if name not in but:
            expected = resize_position(weights[name], (8, 4)) if name == "pos_embed" else weights[name].float()
            assert torch.equal(tensor, expected), name


FORMATS = {
    "state dict": ("w.pth", save_torch, None),
    "state dict of old": ("w.pth", save_torch_before_zip, None),
    "model": ("w.pth", save_torch, "model"),
    "state_dict": ("w.pth.tar", save_torch, "state_dict"),
    "safetensors": ("w.safetensors", safetensors.torch.save_file, None),
}


@pytest.mark.parametrize("file, save, container", FORMATS.values(), ids=FORMATS)
def test_load_timms_names(file, save, container, tmp_path):
    backbone, weights, path = tiny_backbone(), pretrained_timm(), tmp_path / file
    camera_embedding = backbone.camera_embedding.clone()
    save({container: weights, "epoch": 3} if container else weights, path)
    report = load_pretrained(backbone, "test_vit", str(path))
    assert_loaded(backbone, weights)
    assert torch.equal(backbone.camera_embedding, camera_embedding)
    total = len(backbone.vit.state_dict())
    assert f"{total} of {total} tensors loaded, 1 resized (pos_embed), 0 missing" in report
    assert str(path) in report


def test_load_float16(tmp_path):
    backbone = tiny_backbone()
    weights = {name: tensor.half() for name, tensor in pretrained_timm().items()}
    torch.save(weights, tmp_path / "w.pth")
    load_pretrained(backbone, "test_vit", str(tmp_path / "w.pth"))
    assert all(tensor.dtype is torch.float32 for tensor in backbone.vit.state_dict().values())
    assert_loaded(backbone, {name: tensor.float() for name, tensor in weights.items()})


def test_positions_of_the_same_grid_stay_as_they_are(tmp_path):
    backbone = tiny_backbone("INPUT.SIZE_TRAIN", [48, 48], "INPUT.SIZE_TEST", [48, 48])
    weights = pretrained_timm()
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(backbone, "test_vit", str(tmp_path / "w.pth"))
    assert torch.equal(backbone.vit.pos_embed, weights["pos_embed"])
    assert "0 resized," in report


def test_positions_of_a_square_are_resized_to_a_grid_of_as_many(tmp_path):
    backbone = tiny_backbone("INPUT.SIZE_TRAIN", [128, 32], "INPUT.SIZE_TEST", [128, 32])
    weights = pretrained_timm(side=8)
    torch.save(weights, tmp_path / "w.pth")
    load_pretrained(backbone, "test_vit", str(tmp_path / "w.pth"))
    assert torch.equal(backbone.vit.pos_embed, resize_position(weights["pos_embed"], (16, 4)))


def test_what_does_not_fit_is_reported_and_left_alone(tmp_path):
    backbone, weights = tiny_backbone(), pretrained_timm()
    before = {name: tensor.clone() for name, tensor in backbone.vit.state_dict().items()}
    missing = ["blocks.0.norm1.bias", "norm.weight"]
    del weights["norm.weight"]
    weights["blocks.0.norm1.bias"] = torch.ones(7)
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(backbone, "test_vit", str(tmp_path / "w.pth"))
    assert_loaded(backbone, weights, but=missing)
    for name in missing:
        assert torch.equal(backbone.vit.state_dict()[name], before[name])
    assert f"{len(before) - 2} of {len(before)} tensors loaded" in report
    assert report.endswith("1 missing (norm.weight), 1 of another shape (blocks.0.norm1.bias)")


def test_incomplete_weights_are_said_loudly(tmp_path):
    whole = pretrained_timm()
    part = {name: tensor for name, tensor in whole.items() if name.startswith("norm.")}
    for weights in (whole, part):
        torch.save(weights, tmp_path / "w.pth")
        report = load_pretrained(tiny_backbone(), "test_vit", str(tmp_path / "w.pth"))
        assert report.startswith("WARNING: incomplete") == (weights is part)
    total = len(tiny_backbone().vit.state_dict())
    assert f"2 of {total} tensors loaded, 0 resized, {total - 2} missing (blocks.0.attn.proj.bias, " in report
    assert report.endswith(", …)") and report.count(", ") < 10


# Mistakes


@pytest.mark.parametrize("source", ["", "none"])
def test_random_weights_are_said_and_warned_of_unless_they_are_meant(source):
    backbone = tiny_backbone()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    said = load_pretrained(backbone, "test_vit", source)
    assert "random" in said.lower() and said.startswith("WARNING: ") == (not source)
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


def load_error(path):
    """What load_pretrained says of the file, which it must name; the backbone is left as it was."""
    backbone = tiny_backbone()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    text = message(lambda: load_pretrained(backbone, "test_vit", str(path)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    assert "MODEL.PRETRAIN_PATH_T" in text and str(path) in text
    return text


def test_missing_file(tmp_path):
    assert "does not exist" in load_error(tmp_path / "w.pth")
    assert "does not exist" in load_error(tmp_path)


@pytest.mark.parametrize("file", ["w.pth", "w.safetensors"])
def test_no_weights_file(file, tmp_path):
    (tmp_path / file).write_bytes(b"<!DOCTYPE html><html>404 Not Found</html>")
    assert "damaged" in load_error(tmp_path / file)


@pytest.mark.parametrize("kind", ["state dict", "state dict of old", "safetensors", "archive"])
def test_truncated_file(kind, tmp_path):
    file, save = ("w.pt", save_archive) if kind == "archive" else FORMATS[kind][:2]
    path = tmp_path / file
    save(pretrained_timm(), path)
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 3])
    text = message(lambda: read_weights(path))
    assert "damaged" in text and str(path) in text


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(tokens)


def test_torchscript_of_another_model(tmp_path):
    """An archive is a program: read for CLIP's backbones alone, refused for any other."""
    torch.jit.script(Scaled()).save(str(tmp_path / "w.pt"))
    assert list(read_source("vit_base_patch16_clip_224", str(tmp_path / "w.pt"))) == ["inner.weight", "inner.bias"]
    assert "plain tensors" in load_error(tmp_path / "w.pt")


@pytest.mark.parametrize("weights", [{"conv1.weight": torch.ones(3)}, {"norm.weight": torch.ones(3)}], ids=["names", "shapes"])
def test_weights_that_do_not_fit_at_all(weights, tmp_path):
    torch.save(weights, tmp_path / "w.pth")
    text = load_error(tmp_path / "w.pth")
    assert "test_vit" in text
    assert next(iter(weights)) in text


def test_position_embedding_of_no_square_grid_in_a_file(tmp_path):
    backbone, weights = tiny_backbone(), pretrained_timm()
    weights["pos_embed"] = torch.randn(1, 1 + 30, 64)
    torch.save(weights, tmp_path / "w.pth")
    report = load_pretrained(backbone, "test_vit", str(tmp_path / "w.pth"))
    assert report.startswith("WARNING: incomplete") and report.endswith("1 of another shape (pos_embed)")
