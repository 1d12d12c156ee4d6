"""What is known of images between two blocks (`State`), and what goes with their tokens position by position."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

Grid = tuple[int, int]  # rows and columns of patches
ByName = dict[str, torch.Tensor]  # tensors by the names of images
UNNAMED = ("image",)  # the name of images of a model that gives them none


@dataclass(frozen=True)
class State:
    """What is known of the images whose tokens (B, P + n + E, C) stand between two blocks: P prefix tokens (class token,
    registers), n patches, and E extra tokens, which the stages before have made of what they dropped.

    The rows are of the images `names`, one name after the other, such as the modalities of a triplet. By name there is what a
    score reads of the images: `missing` (B, 1) bool, and `saliency` (B, N) of the whole grid of N patches.
    """

    grid: Grid
    names: tuple[str, ...] = UNNAMED
    shared: bool = False  # whether the images of all names keep the same patches
    images: ByName = field(default_factory=dict)  # (B, 3, H, W)
    missing: ByName = field(default_factory=dict)
    saliency: ByName = field(default_factory=dict)
    extra: int = 0  # E
    # (B, n) int64, ascending: index of each patch on the grid; None: the whole grid
    positions: torch.Tensor | None = None
    # What a score computes of the images once for all stages, by its name and that of the images.
    computed: dict[str, ByName] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """n."""
        return prod(self.grid) if self.positions is None else int(self.positions.shape[1])

    def patches(self, values: torch.Tensor) -> torch.Tensor:
        """The patches (B, n, C) of tokens (B, P + n + E, C)."""
        end = int(values.shape[1]) - self.extra
        return values[:, end - self.count : end]

    def places(self, values: torch.Tensor) -> torch.Tensor:
        """(B, n) int64: index on the grid of each patch of tokens (B, …), also where `positions` is None."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.count, device=values.device).repeat(values.shape[0], 1)

    def arguments(self, values: torch.Tensor, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a block by name, for tokens (B, L, C), of those for the whole grid."""
        if self.positions is None:
            return dict(whole)
        return {
            name: PER_POSITION[name](value, self)
            if name in PER_POSITION and value is not None
            else value
            for name, value in whole.items()
        }


def keep_tokens(
    values: torch.Tensor, state: State, kept: torch.Tensor
) -> tuple[torch.Tensor, State]:
    """Tokens (B, L, C) with the patches `kept` (B, K) of n alone, ascending."""
    batch, length = values.shape[:2]
    prefix = int(length) - state.extra - state.count
    rows = torch.arange(length, device=kept.device).expand(batch, -1)
    index = torch.cat([rows[:, :prefix], kept + prefix, rows[:, length - state.extra :]], dim=1)
    positions = state.places(values).gather(1, kept)
    return gather_tokens(values, index), replace(state, positions=positions)


def append_token(
    values: torch.Tensor, state: State, token: torch.Tensor
) -> tuple[torch.Tensor, State]:
    """One more token (B, 1, C) after the others."""
    return torch.cat([values, token.to(values.dtype)], dim=1), replace(state, extra=state.extra + 1)


def rotary(rope: torch.Tensor, state: State) -> torch.Tensor:
    """timm's rotary embedding of all patches, sines and cosines (N, D), (heads, N, D) or (B, heads, N, D), for those of
    `state` → (B, heads or 1, n + E, D); the extra tokens are not rotated."""
    assert state.positions is not None
    sines, cosines = rope[..., :1, :].chunk(2, dim=-1)
    still = torch.cat([torch.zeros_like(sines), torch.ones_like(cosines)], dim=-1)
    return gather_rows(rope, state.positions, -2, still, state.extra)


def rotary_pair(pair: tuple[torch.Tensor, torch.Tensor], state: State) -> tuple[torch.Tensor, ...]:
    """`rotary` of transformers' embedding, cosines and sines (N, D)."""
    return rotary(torch.cat(pair[::-1], dim=-1), state).chunk(2, dim=-1)[::-1]


def attention_mask(mask: torch.Tensor, state: State) -> torch.Tensor:
    """A mask of attention between all L tokens, (L, L) or (B or 1, heads or 1, L or 1, L), for `state` → (B, heads or 1, L' or
    1, L'). Extra tokens are seen: true, or 0 where the mask is added."""
    positions, length = state.positions, mask.shape[-1]
    assert positions is not None
    prefix = torch.arange(length - prod(state.grid), device=positions.device)
    index = torch.cat([prefix.expand(len(positions), -1), positions + len(prefix)], dim=1)
    for dim in (-2, -1):
        if mask.shape[dim] == length:
            visible = torch.full_like(mask.narrow(dim, 0, 1), mask.dtype == torch.bool)
            mask = gather_rows(mask, index, dim, visible, state.extra)
    return mask


def gather_rows(
    values: torch.Tensor, index: torch.Tensor, dim: int, row: torch.Tensor, extra: int
) -> torch.Tensor:
    """values (B or 1, heads or 1, …, …) of up to four dimensions, at index (B, K) along `dim`, -2 or -1, and `extra` times
    `row`, of length 1 along it."""
    index = F.pad(index, (0, extra), value=values.shape[dim])
    values = torch.cat([values, row], dim=dim)
    values = values.reshape(*[1] * (4 - values.ndim), *values.shape).expand(len(index), -1, -1, -1)
    shape = list(values.shape)
    shape[dim] = index.shape[1]
    index = index[:, None, :, None] if dim == -2 else index[:, None, None, :]
    return values.gather(dim, index.expand(shape))


PER_POSITION: dict[str, Callable[[Any, State], Any]] = {
    "rope": rotary,
    "position_embeddings": rotary_pair,
    "attn_mask": attention_mask,
    "attention_mask": attention_mask,
}
"""What becomes of the arguments of blocks that have a row for each position, by their names: of timm (rope, attn_mask),
transformers (position_embeddings of DINOv3, attention_mask); a host adds its own."""


def no_autocast(tensor: torch.Tensor) -> AbstractContextManager:
    """Context manager: without autocast on the device of a tensor; the meta device has none."""
    kind = tensor.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def gather_tokens(tokens: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """tokens (B, N, C), index (B, K) → tokens (B, K, C)."""
    # Several times as fast on a CPU as gather, whose index is as large as its result.
    return tokens[torch.arange(tokens.shape[0], device=tokens.device).unsqueeze(-1), index]


def split_rows(rows: torch.Tensor, names: Collection[str]) -> ByName:
    """(M·B, …) of M names → (B, …) by name, as views."""
    # Not by `chunk`, with which an exported graph (torch.export) would know the batch.
    return dict(zip(names, rows.unflatten(0, (len(names), -1)).unbind(), strict=True))
