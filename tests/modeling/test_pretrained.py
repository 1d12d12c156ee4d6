"""Pretrained weights into the backbone: positions, what does not fit, and files that do not serve."""

from functools import lru_cache

import pytest
import timm
import torch
from tiny import CAMERAS, tiny_cfg
from torch import nn
from weight_files import message, save_torch, save_torch_before_zip

from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained, resize_position


def tiny_backbone(*opts):
    torch.manual_seed(2)
    return make_backbone(tiny_cfg(*opts), CAMERAS)


@lru_cache
def classifier_weights(seed, side):
    torch.manual_seed(seed)
    vit = timm.create_model(
        "test_vit", pretrained=False, num_classes=10, img_size=8 * side, patch_size=8
    )
    return {name: torch.randn_like(tensor) for name, tensor in vit.state_dict().items()}


def pretrained_timm(seed=3, side=6):
    """Weights of a classifier like the tiny backbone, for square images: side² patches and a head for ten classes."""
    return dict(classifier_weights(seed, side))


def assert_loaded(backbone, weights, but=()):
    """Every tensor of the tiny backbone is the one of its name, the position embedding resized from its square."""
    for name, tensor in backbone.vit.state_dict().items():
        if name not in but:
            expected = (
                resize_position(weights[name], (8, 4))
                if name == "pos_embed"
                else weights[name].float()
            )
            assert torch.equal(tensor, expected), name


def test_load_timms_names(tmp_path):
    """From a file in the format of old; tests/modeling/test_published_weights.py has the others."""
    backbone, weights, path = tiny_backbone(), pretrained_timm(), tmp_path / "w.pth"
    camera_embedding = backbone.camera_embedding.clone()
    save_torch_before_zip({"model": weights, "epoch": 3}, path)
    report = load_pretrained(backbone, "test_vit", str(path))
    assert_loaded(backbone, weights)
    assert torch.equal(backbone.camera_embedding, camera_embedding)
    total = len(backbone.vit.state_dict())
    assert f"{path}: {total} of {total} tensors loaded, 1 resized (pos_embed), 0 missing" in report
    assert "WARNING" not in report


@pytest.mark.parametrize(
    ("side", "size"), [(6, [48, 48]), (8, [128, 32])], ids=["the same grid", "a grid of as many"]
)
def test_positions_of_a_square_are_resized_unless_the_grid_is_the_same(tmp_path, side, size):
    backbone, weights = (
        tiny_backbone("INPUT.SIZE_TRAIN", size, "INPUT.SIZE_TEST", size),
        pretrained_timm(side=side),
    )
    torch.save(weights, tmp_path / "w.pth")
    load_pretrained(backbone, "test_vit", str(tmp_path / "w.pth"))
    expected = resize_position(weights["pos_embed"], (16, 4)) if side == 8 else weights["pos_embed"]
    assert torch.equal(backbone.vit.pos_embed, expected)


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
    assert report.startswith("WARNING: incomplete")
    assert f"{len(before) - 2} of {len(before)} tensors loaded" in report
    assert report.endswith("1 missing (norm.weight), 1 of another shape (blocks.0.norm1.bias)")


# Mistakes


@pytest.mark.parametrize("source", ["", "none"])
def test_random_weights_are_said_and_warned_of_unless_they_are_meant(source):
    backbone = tiny_backbone()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    report = load_pretrained(backbone, "test_vit", source)
    assert "random" in report.lower() and report.startswith("WARNING: ") == (not source)
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


def nothing(path):
    """No file is made."""


def cut_short(path):
    save_torch(pretrained_timm(), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(tokens)


def an_archive(path):
    """A program: read for CLIP's backbones alone, refused for any other."""
    torch.jit.script(Scaled()).save(str(path))


MISTAKES = {
    "no file": (nothing, "does not exist"),
    "a web page": (
        lambda path: path.write_bytes(b"<!DOCTYPE html><html>404 Not Found</html>"),
        "damaged",
    ),
    "cut short": (cut_short, "damaged"),
    "an archive": (an_archive, "plain tensors"),
    "other names": (lambda path: torch.save({"conv1.weight": torch.ones(3)}, path), "conv1.weight"),
    "other shapes": (lambda path: torch.save({"norm.weight": torch.ones(3)}, path), "norm.weight"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_file_that_does_not_serve_is_named_and_the_backbone_left_as_it_was(tmp_path, name):
    make, reason = MISTAKES[name]
    make(tmp_path / "w.pt")
    backbone = tiny_backbone()
    before = {key: tensor.clone() for key, tensor in backbone.vit.state_dict().items()}
    text = message(lambda: load_pretrained(backbone, "test_vit", str(tmp_path / "w.pt")))
    assert reason in text and str(tmp_path / "w.pt") in text
    assert all(
        torch.equal(tensor, before[key]) for key, tensor in backbone.vit.state_dict().items()
    )
