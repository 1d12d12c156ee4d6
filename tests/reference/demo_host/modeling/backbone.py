"""A plain ViT in place of DeMo's ImageNet backbone, under its weight names, and a small tower of CLIP's (clip.py)."""

import torch
import torch.nn.functional as F
from torch import nn

from modeling.clip import Tower

PATCH = 16
SIZES = {"test_vit": (64, 6, 2, 3), "small_clip": (64, 4, 2, 4)}
"""Width, blocks, heads, and hidden width of the MLPs over the width."""


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens):
        batch, count, width = tokens.shape
        query, key, value = (
            self.qkv(tokens).view(batch, count, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        )
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, count, width))


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, tokens):
        return self.fc2(F.gelu(self.fc1(tokens)))


class Block(nn.Module):
    def __init__(self, width, heads, ratio):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, ratio * width)

    def forward(self, tokens):
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class PatchEmbed(nn.Module):
    def __init__(self, width, stride):
        super().__init__()
        self.proj = nn.Conv2d(3, width, PATCH, stride)

    def forward(self, images):
        return self.proj(images).flatten(2).mT


class Vit(nn.Module):
    def __init__(self, cfg, camera_num):
        super().__init__()
        width, depth, heads, ratio = SIZES[cfg.MODEL.TRANSFORMER_TYPE]
        stride = cfg.MODEL.STRIDE_SIZE
        self.patch_embed = PatchEmbed(width, stride)
        with torch.no_grad():
            patches = self.patch_embed(torch.zeros(1, 3, *cfg.INPUT.SIZE_TRAIN)).shape[1]
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + patches, width))
        self.sie_weight = cfg.MODEL.SIE_COE
        self.sie_embed = (
            nn.Parameter(0.02 * torch.randn(camera_num, 1, width)) if cfg.MODEL.SIE_CAMERA else None
        )
        self.blocks = nn.Sequential(*(Block(width, heads, ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, images, cam_label):
        class_token = self.cls_token.expand(len(images), -1, -1)
        tokens = torch.cat([class_token, self.patch_embed(images)], dim=1) + self.pos_embed
        if self.sie_embed is not None and cam_label is not None:
            tokens = tokens + self.sie_weight * self.sie_embed[cam_label]
        return self.norm(self.blocks(tokens))


class Backbone(nn.Module):
    """Images (B, 3, H, W) → patch tokens (B, N, C) and class token (B, C)."""

    def __init__(self, cfg, camera_num):
        super().__init__()
        self.cv_embed = None
        if cfg.MODEL.TRANSFORMER_TYPE == "small_clip":
            width, depth, heads, _ = SIZES["small_clip"]
            self.base = Tower(cfg, width, depth, heads)
            self.sie_weight = cfg.MODEL.SIE_COE
            self.cv_embed = nn.Parameter(0.02 * torch.randn(camera_num, 1, width))
        else:
            self.base = Vit(cfg, camera_num)

    def forward(self, images, cam_label=None, view_label=None):
        if self.cv_embed is not None and cam_label is not None:
            cam_label = self.sie_weight * self.cv_embed[cam_label]
        tokens = self.base(images, cam_label)
        return tokens[:, 1:], tokens[:, 0]
