"""DeMo with CLIP's backbone, without optimisations, under DeMo's parameter names (docs/method.md): one backbone pass per
modality, torch's attention, HDM in full, a loop over experts, a forward per return pattern, a group per parameter."""

import torch
from torch import nn

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.losses import TrainingOutput
from tests.reference.fusion import Fusion, QuickGELU

WIDTH, OUT_WIDTH, DEPTH, HEADS, PATCH = 768, 512, 12, 12, 16
SUFFIXES = {"RGB": "rgb", "NI": "nir", "TI": "tir"}
BACKBONE_RATE = 5e-6


class Demo(nn.Module):
    """DIRECT 1 with PIFE, HDM and ATMoE: images {modality: (B, 3, H, W)} and cameras (B,) → outputs of DeMo."""

    def __init__(self, size, classes, cameras, heads=4, camera_weight=1.0, dropout=0.1):
        super().__init__()
        self.BACKBONE = Backbone(size, cameras, camera_weight)
        for name in SUFFIXES.values():
            self.add_module(
                f"{name}_reduce",
                nn.Sequential(
                    nn.LayerNorm(2 * OUT_WIDTH), nn.Linear(2 * OUT_WIDTH, OUT_WIDTH), QuickGELU()
                ),
            )
        self.generalFusion = Fusion(OUT_WIDTH, heads, dropout)
        for suffix, width in (("_moe", 7 * OUT_WIDTH), ("", 3 * OUT_WIDTH)):
            self.add_module(f"bottleneck{suffix}", nn.BatchNorm1d(width))
            self.add_module(f"classifier{suffix}", nn.Linear(width, classes, bias=False))
        self.bottleneck.bias.requires_grad_(False)
        self.bottleneck_moe.bias.requires_grad_(False)

    def forward(self, images, cameras, return_pattern=3):
        """Training: logits and features of ATMoE and of the original features; evaluation: feature of one pattern."""
        patches, global_feats = {}, {}
        for modality in MODALITIES:
            patches[modality], class_token = self.BACKBONE(images[modality], cameras)
            both = torch.cat([class_token, patches[modality].mean(dim=1)], dim=1)
            global_feats[modality] = self.get_submodule(f"{SUFFIXES[modality]}_reduce")(both)
        original = torch.cat([global_feats[modality] for modality in MODALITIES], dim=1)
        moe = self.generalFusion(patches, global_feats)
        if self.training:
            logits = {
                "moe": self.classifier_moe(self.bottleneck_moe(moe)),
                "original": self.classifier(self.bottleneck(original)),
            }
            return TrainingOutput(logits, {"moe": moe, "original": original}, None)
        return {1: original, 2: moe, 3: torch.cat([original, moe], dim=1)}[return_pattern]


class Backbone(nn.Module):
    def __init__(self, size, cameras, camera_weight, width=WIDTH, **sizes):
        super().__init__()
        self.base = ClipBackbone(size, width, **sizes)
        self.cv_embed = nn.Parameter(0.02 * torch.randn(cameras, 1, width))
        self.camera_weight = camera_weight

    def forward(self, image, cameras):
        tokens = self.base(image, self.camera_weight * self.cv_embed[cameras])
        return tokens[:, 1:], tokens[:, 0]


class ClipBackbone(nn.Module):
    """CLIP's Vision Transformer, ViT-B/16 by default, for images of `size` = (height, width)."""

    def __init__(
        self,
        size,
        width=WIDTH,
        out_width=OUT_WIDTH,
        depth=DEPTH,
        heads=HEADS,
        stride=(PATCH, PATCH),
    ):
        super().__init__()
        rows, columns = ((one - PATCH) // step + 1 for one, step in zip(size, stride, strict=True))
        self.conv1 = nn.Conv2d(3, width, PATCH, stride, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width) / width**0.5)
        self.positional_embedding = nn.Parameter(
            torch.randn(1 + rows * columns, width) / width**0.5
        )
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.randn(width, out_width) / width**0.5)

    def forward(self, image, camera=0):
        """image (B, 3, H, W), embedding of its camera (B, 1, C) → tokens (B, 1 + N, C of the joint space)."""
        patches = self.conv1(image).flatten(2).permute(0, 2, 1)
        class_token = self.class_embedding.expand(image.shape[0], 1, -1) + camera
        tokens = self.ln_pre(torch.cat([class_token, patches], dim=1) + self.positional_embedding)
        tokens = self.transformer.resblocks(tokens.permute(1, 0, 2)).permute(1, 0, 2)
        return self.ln_post(tokens) @ self.proj


class Block(nn.Module):
    """Tokens (1 + N, B, C) → the same shape."""

    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", QuickGELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, tokens):
        normed = self.ln_1(tokens)
        tokens = tokens + self.attn(normed, normed, normed, need_weights=False)[0]
        return tokens + self.mlp(self.ln_2(tokens))


def make_optimizer(model, rate, decay):
    """Adam with one group per parameter (docs/method.md): 5e-6 for CLIP, twice `rate` for other biases."""
    groups = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate_of_group = 2 * rate if name.endswith("bias") else rate
        if name.startswith("BACKBONE.base."):
            rate_of_group = BACKBONE_RATE
        groups.append({"params": [parameter], "lr": rate_of_group, "weight_decay": decay})
    return torch.optim.Adam(groups, lr=rate)
