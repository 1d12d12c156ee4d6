"""The towers of the miniatures of reference/hosts.py, and slimming by hand.

Before every block and behind the last a tower calls its `stage` where a test has put `Slow` there.
"""

from collections import Counter
from math import ceil

import torch
import torch.nn.functional as F
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

    def __call__(self, index, x, mask):
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
        rows, masks = zip(
            *(
                self.image(index, image, (call, row), score)
                for row, (image, score) in enumerate(zip(images, scores, strict=True))
            ),
            strict=True,
        )
        if mask is not None:
            mask = torch.stack(
                [
                    torch.cat([own.flatten()[places], torch.ones(extra)])
                    for own, (places, extra) in zip(mask, masks, strict=True)
                ]
            )
        x = torch.stack(rows)
        return x.transpose(0, 1) if self.tokens_first else x, mask

    def image(self, index, tokens, key, score):
        """The tokens (L, C) of one image that are left → (L', C), places of its patches and number of extra tokens."""
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
        left = [*tokens[: self.prefix], *patches.values(), *extras, *tokens[end:]]
        return torch.stack(left), (list(patches), len(extras))


class Block(nn.Module):
    """CLIP's, for tokens (L, B, C); `use_mask` (B, …) has a number for each token but the class token."""

    tokens_first = True

    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=not self.tokens_first)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(
        self, x, modality=None, index=None, last_prompt=None, prompt_sign=False, use_mask=None
    ):
        seen, bias = self.ln_1(x), None
        if use_mask is not None:
            mask = F.pad(use_mask.flatten(1), (1, 0), value=1.0)
            bias = (mask[:, :, None] * mask[:, None]).repeat_interleave(HEADS, 0)
        x = x + self.attn(seen, seen, seen, attn_mask=bias, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class BatchFirst(Block):
    tokens_first = False


class Prompted(Block):
    """Adds prompts to the tokens and takes them off again: → (tokens, prompts)."""

    def __init__(self):
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(3, 1, WIDTH))

    def forward(self, x, modality, index, last_prompt, prompt_sign=True, use_mask=None):
        assert x.shape[1] == len(last_prompt[0]) if index else last_prompt is None
        prompt = self.prompt.expand(-1, x.shape[1], -1) + (last_prompt if index else 0)
        both = super().forward(torch.cat([x, prompt]))
        return both[: len(x)], both[len(x) :]


class Weighing(Block):
    """→ (tokens, attention)."""

    def forward(self, x, *others, **named):
        return super().forward(x), self.attn(x, x, x)[1]


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

    def at(self, index, x, mask=None):
        return self.stage(index, x, mask) if self.stage else (x, mask)

    def forward(self, images, last=None, mask=None):
        x, prompt, self.maps = self.embed(images, last), None, []
        for index in range(DEPTH):
            x, own = self.at(index, x, mask)
            if not self.tokens_first:
                x = self.blocks[index](x)
                continue
            x = self.transformer.resblocks[index](
                x, "rgb", index, prompt, prompt_sign=False, use_mask=own
            )
            x, prompt = x if isinstance(x, tuple) else (x, None)
            self.maps.append(prompt)
        x = self.at(DEPTH, x)[0]
        return x.transpose(0, 1) if self.tokens_first else x


class Interleaved(Tower):
    """Three images at once, block by block; what follows a block is written into its output."""

    def forward(self, *images):
        streams = [self.embed(image) for image in images]
        for index in range(DEPTH):
            for place, x in enumerate(streams):
                streams[place] = self.transformer.resblocks[index](
                    self.at(index, x)[0], modality=NAMES[place], index=index
                )
            centre = sum(x[0] for x in streams) / 3
            for x in streams:
                x[0] += 0.1 * centre
        return [self.at(DEPTH, x)[0].transpose(0, 1) for x in streams]


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
