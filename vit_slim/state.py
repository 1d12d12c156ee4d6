"""What slimming knows of images between two blocks (`State`), and what goes with their tokens position by position."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from demo_sdtps.modeling.modalities import ByModality, Grid
from demo_sdtps.modeling.sdtps import gather_tokens

UNNAMED = ("image",)  # the modality of a model that has no names for them


@dataclass(frozen=True)
class State:
    """What is known of the images whose tokens (B, P + n + E, C) stand between two blocks: P prefix tokens (class token,
    registers), n patches, E others, which are those that a host has after the patches and the extra tokens of slimming. The
    rows are of the modalities `names`, one after the other. By modality there are what a score reads of the images: `missing`
    (B, 1) bool, and of the whole grid of N patches `foreground`, shares in the mask, and `saliency`, (B, N)."""

    grid: Grid  # (rows, columns) of patches
    names: tuple[str, ...] = UNNAMED
    shared: bool = False  # whether the modalities of the rows keep the same patches
    images: ByModality = field(default_factory=dict)  # (B, 3, H, W)
    missing: ByModality = field(default_factory=dict)
    foreground: ByModality = field(default_factory=dict)
    saliency: ByModality = field(default_factory=dict)
    suffix: int = 0  # of the E tokens, those of the host
    extra: int = 0  # E
    # (B, n) int64, ascending: index of each patch on the grid; None: the whole grid
    positions: torch.Tensor | None = None
    # What a score computes of the images once for all stages, by its name and modality.
    computed: dict[str, ByModality] = field(default_factory=dict)

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
        """Keyword arguments of a block for tokens (B, L, C), of those for the whole grid."""
        return {name: self.cut(name, value) for name, value in whole.items()}

    def cut(self, name: str, value: Any) -> Any:
        """The argument `name` of a block for the remaining patches, where it has a row for each position."""
        is_cut = self.positions is not None and name in PER_POSITION and value is not None
        return PER_POSITION[name](value, self) if is_cut else value


def scatter_tokens(
    grid: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """grid (B, N, C) with tokens (B, n, C) at positions (B, n)."""
    rows = torch.arange(grid.shape[0], device=grid.device).unsqueeze(1)
    return grid.index_put((rows, positions), tokens.to(grid.dtype))


def cut_tokens(values: torch.Tensor, state: State, extra: torch.Tensor) -> torch.Tensor:
    """Values (B, L, C) with the whole grid → those of `state`, with its extra tokens (B, E, C)."""
    patches = prod(state.grid)
    end = int(values.shape[1]) - state.suffix
    kept = gather_tokens(values[:, end - patches : end], state.places(values))
    return torch.cat([values[:, : end - patches], kept, values[:, end:], extra], dim=1)


def rotary(rope: torch.Tensor, state: State) -> torch.Tensor:
    """timm's rotary embedding of all patches, sines and cosines (N, D), (heads, N, D) or (B, heads, N, D), for those of
    `state` → (B, heads or 1, n + E, D); the others are not rotated."""
    positions = state.positions
    assert positions is not None
    rope = rope.reshape(*[1] * (4 - rope.ndim), *rope.shape).expand(positions.shape[0], -1, -1, -1)
    index = positions[:, None, :, None].expand(-1, rope.shape[1], -1, rope.shape[3])
    still = torch.ones_like(rope[:, :, :1]).expand(-1, -1, state.extra, -1)
    still = torch.cat([0 * still[..., : rope.shape[3] // 2], still[..., rope.shape[3] // 2 :]], -1)
    return torch.cat([rope.gather(2, index), still], dim=2)


def rotary_pair(pair: tuple[torch.Tensor, torch.Tensor], state: State) -> tuple[torch.Tensor, ...]:
    """`rotary` of transformers' embedding, cosines and sines (N, D)."""
    return rotary(torch.cat(pair[::-1], dim=-1), state).chunk(2, dim=-1)[::-1]


def patch_mask(mask: torch.Tensor, state: State) -> torch.Tensor:
    """A mask of all patches (B, …), N for each image, for those of `state` → (B, n + E); the others have 1."""
    positions = state.positions
    assert positions is not None
    return F.pad(mask.flatten(1).gather(1, positions), (0, state.extra), value=1)


def attention_mask(mask: torch.Tensor, state: State) -> torch.Tensor:
    """A mask of attention between all L tokens, (L, L) or (B or 1, heads or 1, L or 1, L), for `state` → (B, heads or 1, L' or
    1, L'). Extra tokens are seen: true, or 0 where the mask is added."""
    positions, length, suffix = state.positions, mask.shape[-1], state.suffix
    assert positions is not None
    prefix = length - suffix - prod(state.grid)
    rows = torch.arange(length + 1, device=positions.device).expand(positions.shape[0], -1)
    # Row `length`, of the extra tokens, is appended below.
    ends = rows[:, length - suffix : length], rows[:, length:].expand(-1, state.extra - suffix)
    index = torch.cat([rows[:, :prefix], positions + prefix, *ends], dim=1)
    mask = mask.reshape(*[1] * (4 - mask.ndim), *mask.shape).expand(positions.shape[0], -1, -1, -1)
    for dim in (2, 3):
        if mask.shape[dim] == length:
            mask = mask.transpose(2, dim)
            visible = torch.full_like(mask[:, :, :1], mask.dtype == torch.bool)
            places = index[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[3])
            mask = torch.cat([mask, visible], dim=2).gather(2, places).transpose(2, dim)
    return mask


PER_POSITION: dict[str, Callable[[Any, State], Any]] = {
    "rope": rotary,
    "position_embeddings": rotary_pair,
    "attn_mask": attention_mask,
    "attention_mask": attention_mask,
    "use_mask": patch_mask,
}
"""What becomes of the arguments of blocks that have a row for each position, by their names: of timm (rope, attn_mask),
transformers (position_embeddings of DINOv3, attention_mask) and STMI (use_mask)."""
