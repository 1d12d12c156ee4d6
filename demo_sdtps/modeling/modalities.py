"""Tensors by modality, and sets of modalities."""

from collections.abc import Collection, Sequence

import torch

ByModality = dict[str, torch.Tensor]  # tensors by modality, in the order of MODALITIES

SUBSETS = {
    "r": ("RGB",),
    "n": ("NI",),
    "t": ("TI",),
    "rn": ("RGB", "NI"),
    "rt": ("RGB", "TI"),
    "nt": ("NI", "TI"),
    "rnt": ("RGB", "NI", "TI"),
}
"""The modalities that each of HDM's seven queries attends to, by DeMo's names."""


def modality_subsets(modalities: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The entries of SUBSETS that have no other modality than these."""
    return {name: subset for name, subset in SUBSETS.items() if set(subset) <= set(modalities)}


def split_rows(rows: torch.Tensor, names: Collection[str]) -> ByModality:
    """(M·B, …) → (B, …) by modality, as views."""
    # Not by `chunk`, with which an exported graph (torch.export) would know the batch.
    return dict(zip(names, rows.unflatten(0, (len(names), -1)).unbind(), strict=True))


def is_missing(images: ByModality) -> ByModality:
    """Whether an image (B, 3, H, W) is missing, that is, zeros: (B, 1) bool by modality."""
    return {name: ~image.flatten(1).any(dim=1, keepdim=True) for name, image in images.items()}
