"""The towers of the miniatures of reference/hosts.py, and slimming by hand.

Before every block and behind the last a tower calls its `stage` where a test has put `Slow` there.
"""

from collections import Counter
from math import ceil

import torch
from torch import nn

WIDTH, HEADS, DEPTH, PATCH, GRID, CLASSES = 16, 2, 4, 16, (8, 4), 5
SIZE, PATCHES = (GRID[0] * PATCH, GRID[1] * PATCH), GRID[0] * GRID[1]
NAMES = ("RGB", "NI", "TI")


class Slow:
    """Slimming by hand, image by image: before block `blocks[k]` call i of a tower keeps the share `keep[k]` by scores[i]
    (B, N) of the grid, or by scores(index, tokens) (B, L), and the dropped ones become an extra token, their mean by the
    softmax of the scores, or the sum weighted by what scores() gives; behind the last block the extra tokens go, or the grid
    comes back."""

    def __init__(self, blocks, keep, scores, prefix=1, suffix=0, restore=False, tokens_first=True):
        self.shares, self.scores, self.prefix, self.suffix = (
            dict(zip(blocks, keep, strict=True)),
            scores,
            prefix,
            suffix,
        )
        self.restore, self.tokens_first = restore, tokens_first
        self.calls, self.held = Counter(), {}

    def __call__(self, index, x):
        call = self.calls[index]
        self.calls[index] += 1
        images = x.transpose(0, 1) if self.tokens_first else x
        scores = [None] * len(images)
        if self.shares.get(index, 1) < 1:
            scores = (
                self.scores(index, x)[:, self.prefix :]
                if callable(self.scores)
                else self.scores[call]
            )
        rows = [
            self.image(index, image, (call, row), score)
            for row, (image, score) in enumerate(zip(images, scores, strict=True))
        ]
        x = torch.stack(rows)
        return x.transpose(0, 1) if self.tokens_first else x

    def image(self, index, tokens, key, score):
        """The tokens (L, C) of one image that are left → (L', C)."""
        held, places, extra = self.held.setdefault(key, ({}, range(PATCHES), 0))
        end = len(tokens) - self.suffix
        patches = dict(zip(places, tokens[self.prefix :], strict=False))
        extras = list(tokens[end - extra : end])
        if score is not None:
            score = (
                dict(zip(places, score.tolist(), strict=False))
                if callable(self.scores)
                else score.tolist()
            )
            ranked = sorted(patches, key=lambda place: -score[place])
            count = ceil(len(ranked) * self.shares[index])
            held |= patches
            weights = torch.tensor([score[place] for place in ranked[count:]])
            weights = weights if callable(self.scores) else weights.softmax(0)
            extras.append(
                sum(
                    weight * patches[place]
                    for weight, place in zip(weights.float(), ranked[count:], strict=True)
                )
            )
            patches = {place: patches[place] for place in sorted(ranked[:count])}
        if index == DEPTH:
            extras, patches = (
                [],
                dict(sorted((held | patches).items())) if self.restore else patches,
            )
        self.held[key] = held, list(patches), len(extras)
        return torch.stack([*tokens[: self.prefix], *patches.values(), *extras, *tokens[end:]])


class Block(nn.Module):
    """CLIP's, for tokens (L, B, C)."""

    tokens_first = True

    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=not self.tokens_first)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x):
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class BatchFirst(Block):
    tokens_first = False


class Tower(nn.Module):
    """Images (B, 3, H, W) → tokens (B, L, C): those of the class first, `last` (B, C) behind the patches."""

    def __init__(self, block=Block, prefix=1):
        super().__init__()
        self.prefix, self.tokens_first = prefix, block.tokens_first
        self.conv1 = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(prefix, WIDTH))
        self.positional_embedding = nn.Parameter(0.3 * torch.randn(prefix + PATCHES, WIDTH))
        if self.tokens_first:
            self.transformer = nn.Module()
            self.transformer.resblocks = nn.Sequential(*(block() for _ in range(DEPTH)))
        else:
            self.blocks = nn.ModuleList(block() for _ in range(DEPTH))
        self.stage = None

    def embed(self, images, last=None):
        patches = self.conv1(images).flatten(2).transpose(1, 2)
        x = (
            torch.cat([self.class_embedding.expand(len(images), -1, -1), patches], dim=1)
            + self.positional_embedding
        )
        x = x if last is None else torch.cat([x, last.unsqueeze(1)], dim=1)
        return x.transpose(0, 1) if self.tokens_first else x

    def forward(self, images, last=None):
        x = self.embed(images, last)
        for index, block in enumerate(
            self.transformer.resblocks if self.tokens_first else self.blocks
        ):
            x = block(self.stage(index, x) if self.stage else x)
        x = self.stage(DEPTH, x) if self.stage else x
        return x.transpose(0, 1) if self.tokens_first else x


class Backbone(nn.Module):
    """→ patches and class token; `is_clip` has the tower beside that of the text."""

    def __init__(self, tower=None, is_clip=False):
        super().__init__()
        self.base = tower or Tower()
        if is_clip:
            self.base = nn.ModuleDict({"visual": self.base})

    def forward(self, *inputs, **named):
        tower = self.base["visual"] if isinstance(self.base, nn.ModuleDict) else self.base
        tokens = tower(*inputs, **named)
        return tokens[:, tower.prefix :], tokens[:, 0]
