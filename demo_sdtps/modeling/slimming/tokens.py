"""Tokens between two blocks, and what goes with them position by position."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Tokens:
    """Tokens between two blocks: P prefix tokens (class token, registers), n patches, E others: those that a host has
    after the patches, and the extra tokens of slimming."""

    values: torch.Tensor  # (B, P + n + E, C)
    # (B, n) int64, ascending: index of each patch on the grid; None: the whole grid
    positions: torch.Tensor | None = None
    # (B, P + n + E) patches merged into each token, its weight in attention; None: all 1
    sizes: torch.Tensor | None = None
    extra: int = 0  # E

    def patches(self, count: int) -> torch.Tensor:
        """(B, n, C) of the n = `count` patches."""
        end = self.values.shape[1] - self.extra
        return self.values[:, end - count : end]

    def grid_positions(self, patches: int) -> torch.Tensor:
        """(B, n) int64: index of each patch on a grid of `patches`, also where `positions` is None."""
        if self.positions is not None:
            return self.positions
        return torch.arange(patches, device=self.values.device).repeat(self.values.shape[0], 1)

    def with_values(self, values: torch.Tensor) -> "Tokens":
        return replace(self, values=values)

    def with_extra(self, token: torch.Tensor) -> "Tokens":
        """One more token (B, 1, C) after the others."""
        values = torch.cat([self.values, token.to(self.values.dtype)], dim=1)
        return replace(self, values=values, extra=self.extra + 1)


def scatter_tokens(
    grid: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """grid (B, N, C) with tokens (B, n, C) at positions (B, n)."""
    rows = torch.arange(grid.shape[0], device=grid.device).unsqueeze(1)
    return grid.index_put((rows, positions), tokens.to(grid.dtype))


def rotary(rope: torch.Tensor, tokens: Tokens, suffix: int = 0) -> torch.Tensor:
    """timm's rotary embedding of all patches, sines and cosines (N, D), (heads, N, D) or (B, heads, N, D), for those of
    `tokens` → (B, heads or 1, n + E, D); the others are not rotated."""
    positions = tokens.positions
    assert positions is not None
    rope = rope.reshape(*[1] * (4 - rope.ndim), *rope.shape).expand(positions.shape[0], -1, -1, -1)
    index = positions[:, None, :, None].expand(-1, rope.shape[1], -1, rope.shape[3])
    extra = rope.new_zeros(*rope.shape[:2], tokens.extra, rope.shape[3])
    extra[..., rope.shape[3] // 2 :] = 1
    return torch.cat([rope.gather(2, index), extra], dim=2)


def rotary_pair(
    pair: tuple[torch.Tensor, torch.Tensor], tokens: Tokens, suffix: int = 0
) -> tuple[torch.Tensor, ...]:
    """`rotary` of transformers' embedding, cosines and sines (N, D)."""
    return rotary(torch.cat(pair[::-1], dim=-1), tokens).chunk(2, dim=-1)[::-1]


def rope_of(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    """The rotary embedding among the arguments of a block, in timm's form."""
    pair = arguments.get("position_embeddings")
    return arguments.get("rope") if pair is None else torch.cat(pair[::-1], dim=-1)


def patch_mask(mask: torch.Tensor, tokens: Tokens, suffix: int = 0) -> torch.Tensor:
    """A mask of all patches (B, …), N for each image, for those of `tokens` → (B, n + E); the others have 1."""
    positions = tokens.positions
    assert positions is not None
    return F.pad(mask.flatten(1).gather(1, positions), (0, tokens.extra), value=1)


def attention_mask(mask: torch.Tensor, tokens: Tokens, suffix: int = 0) -> torch.Tensor:
    """A mask of attention between all L tokens, (L, L) or (B or 1, heads or 1, L or 1, L), of which `suffix` stand after the
    patches, for `tokens` → (B, heads or 1, L' or 1, L'). Extra tokens are seen: true, or 0 where the mask is added."""
    positions, length = tokens.positions, mask.shape[-1]
    assert positions is not None
    batch, prefix = positions.shape[0], tokens.values.shape[1] - positions.shape[1] - tokens.extra
    rows = torch.arange(length + 1, device=positions.device).expand(batch, -1)
    # Row `length`, of the extra tokens, is appended below.
    ends = rows[:, length - suffix : length], rows[:, length:].expand(-1, tokens.extra - suffix)
    index = torch.cat([rows[:, :prefix], positions + prefix, *ends], dim=1)
    mask = mask.reshape(*[1] * (4 - mask.ndim), *mask.shape).expand(batch, -1, -1, -1)
    for dim in (2, 3):
        if mask.shape[dim] == length:
            mask = mask.transpose(2, dim)
            visible = torch.full_like(mask[:, :, :1], mask.dtype == torch.bool)
            rows_of = index[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[3])
            mask = torch.cat([mask, visible], dim=2).gather(2, rows_of).transpose(2, dim)
    return mask


PER_POSITION: dict[str, Callable[[Any, Tokens, int], Any]] = {
    "rope": rotary,
    "position_embeddings": rotary_pair,
    "attn_mask": attention_mask,
    "attention_mask": attention_mask,
    "use_mask": patch_mask,
}
"""What becomes of the arguments of blocks that have a row for each position, by their names: of timm (rope, attn_mask),
transformers (position_embeddings of DINOv3, attention_mask) and STMI (use_mask)."""
