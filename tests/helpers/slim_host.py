"""A code base's own Vision Transformer, of classes that no library has, and models that encode three images with it."""

from functools import partial

import torch
import torch.nn.functional as F
from slim_models import DEPTH, HEADS, WIDTH, Case
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

NAMES = ("RGB", "NI", "TI")
SIDE, ROWS, COLUMNS = 8, 4, 4
WAYS = ("image by image", "block by block", "half by half", "stacked")


class Block(nn.Module):
    """Takes a share of every patch in attention, (B, rows, columns), and a mask between all tokens."""

    def __init__(self, is_tuple=False, dropout=0.0):
        super().__init__()
        self.norm, self.is_tuple, self.dropout = nn.LayerNorm(WIDTH), is_tuple, nn.Dropout(dropout)
        self.attn, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, use_mask=None, attn_mask=None):
        if use_mask is not None:
            share = use_mask.flatten(1)
            share = F.pad(share, (x.shape[1] - share.shape[1], 0), value=1.0)
            attn_mask = share.log()[:, None, None]
        heads = self.attn(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        rows = F.scaled_dot_product_attention(*heads, attn_mask).transpose(1, 2).flatten(2)
        x = x + self.out(rows)
        x = x + self.dropout(torch.tanh(self.mlp(x)))
        return (x, "more") if self.is_tuple else x


class Tower(nn.Module):
    """`recompute`: none, or gradient checkpointing of the stem, of every block, of segments of blocks, or of the whole."""

    def __init__(self, is_tuple=False, recompute="", dropout=0.0):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, SIDE, SIDE)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.position = nn.Parameter(torch.randn(1, ROWS * COLUMNS, WIDTH))
        self.blocks = nn.ModuleList(Block(is_tuple, dropout) for _ in range(DEPTH))
        self.recompute, self.reentrant = recompute, False

    def checkpoint(self, function, *inputs):
        return checkpoint(function, *inputs, use_reentrant=self.reentrant)

    def embed(self, images):
        patches = self.stem(images).flatten(2).transpose(1, 2) + self.position
        return torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)

    def step(self, index, x, **masks):
        output = self.blocks[index](x, **masks)
        return output[0] if self.blocks[index].is_tuple else output

    def encode(self, images, **masks):
        is_apart = self.recompute == "stem"
        x = self.checkpoint(self.embed, images) if is_apart else self.embed(images)
        if self.recompute == "segments":
            return checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=self.reentrant)
        return self.steps(range(DEPTH), x, **masks)

    def steps(self, indices, x, **masks):
        step = partial(self.checkpoint, self.step) if self.recompute == "blocks" else self.step
        for index in indices:
            x = step(index, x, **masks)
        return x

    def forward(self, images, **masks):
        if self.recompute == "whole":
            return self.checkpoint(self.encode, images)
        return self.encode(images, **masks)


class Host(nn.Module):
    """{name: images (B, 3, H, W)} → tokens (B, L, C) of the three images, one after the other, and a head's product."""

    def __init__(self, way="image by image", **settings):
        super().__init__()
        self.way, self.tower, self.head = way, Tower(**settings), nn.Linear(WIDTH, WIDTH)

    def forward(self, images):
        images = list(images.values())
        if self.way == "image by image":
            outputs = [self.tower(image) for image in images]
        elif self.way != "stacked":
            half = 2 if self.way == "half by half" else 0
            outputs = [self.tower.steps(range(half), self.tower.embed(image)) for image in images]
            for index in range(half, DEPTH):
                outputs = [self.tower.step(index, x) for x in outputs]
        else:
            outputs = self.tower(torch.cat(images)).chunk(len(images))
        return self.head(torch.cat(outputs, dim=1))


def make_case(build, call=lambda model, images: model(images), **settings):
    """`settings` are those of slim."""
    path = "blocks" if getattr(build, "func", build) is Tower else "tower.blocks"
    return Case(build, path, patch=SIDE, grid=(ROWS, COLUMNS), call=call, settings=settings)


def host_case(way="image by image", shared=True, **settings):
    build = partial(Host, way, **settings)
    return make_case(build, call_host, blocks_at="tower.blocks", shared=shared)


def call_host(model, images):
    """Images (3B, 3, H, W), of one modality after the other."""
    return model(dict(zip(NAMES, images.chunk(3), strict=True)))
