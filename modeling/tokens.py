"""Tokens between two blocks, and tensors by modality."""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

ByModality = dict[str, torch.Tensor]  # tensors by modality, in the order of MODALITIES


def split_rows(rows: torch.Tensor, names: Collection[str]) -> ByModality:
    """(M·B, …) → (B, …) by modality, as views."""
    # Not by `chunk`, with which an exported graph (torch.export) would know the batch.
    return dict(zip(names, rows.unflatten(0, (len(names), -1)).unbind(), strict=True))


def blank(images: ByModality) -> ByModality:
    """Whether an image (B, 3, H, W) is missing, that is, zeros: (B, 1) bool by modality."""
    return {modality: ~image.flatten(1).any(dim=1, keepdim=True) for modality, image in images.items()}


@dataclass(frozen=True)
class Tokens:
    """Tokens between two blocks: P prefix tokens (class token, registers), n patches, E others: those that a host has
    behind the patches, and the extra tokens of slimming."""

    values: torch.Tensor  # (B, P + n + E, C)
    positions: torch.Tensor | None = None  # (B, n) int64, ascending: index of each patch on the grid; None: the whole grid
    sizes: torch.Tensor | None = None  # (B, P + n + E) patches merged into each token, its weight in attention; None: all 1
    extra: int = 0  # E

    def patches(self, count: int) -> torch.Tensor:
        """(B, n, C) of the n = `count` patches."""
        end = self.values.shape[1] - self.extra
        return self.values[:, end - count:end]

    def grid_positions(self, patches: int) -> torch.Tensor:
        """(B, n) int64: index of each patch on a grid of `patches`, also where `positions` is None."""
        if self.positions is not None:
            return self.positions
        return torch.arange(patches, device=self.values.device).repeat(self.values.shape[0], 1)

    def with_values(self, values: torch.Tensor) -> Tokens:
        return Tokens(values, self.positions, self.sizes, self.extra)
