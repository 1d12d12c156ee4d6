"""Tensors by modality, sets of modalities, and of which modalities the columns of the features are."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

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


def is_missing(images: ByModality) -> ByModality:
    """Whether an image (B, 3, H, W) is missing, that is, zeros: (B, 1) bool by modality."""
    return {name: ~image.flatten(1).any(dim=1, keepdim=True) for name, image in images.items()}


@dataclass(frozen=True)
class FeatureLayout:
    """The features of a model: one per head, and the return patterns 1 (original), 2 (enhanced) and 3 (both) of them."""

    widths: dict[str, int]  # of the heads' features, enhanced ones first
    enhanced: Collection[str]  # heads of SDTPS and HDM
    # of each return pattern in pattern 3, where the original ones are first
    columns: dict[int, slice]
    sources: dict[int, list[frozenset[str]]]  # modalities that each C columns of a pattern are of

    @property
    def width(self) -> int:
        """Columns of pattern 3."""
        return sum(self.widths.values())

    def join(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Features (B, D_head) by head → pattern 3, (B, D)."""
        names = sorted(features, key=lambda name: name in self.enhanced)
        return torch.cat([features[name] for name in names], dim=-1)

    def split(self, both: torch.Tensor) -> dict[int, torch.Tensor]:
        """Pattern 3 (B, D) → every return pattern, as views."""
        return {pattern: both[:, columns] for pattern, columns in self.columns.items()}


def make_layout(
    width: int,
    modalities: Sequence[str],
    subsets: Sequence[Collection[str]],
    one_head: bool,
    has_sdtps: bool,
) -> FeatureLayout:
    """The layout of features of `width` channels C: of the modalities, by `one_head` or one each; of SDTPS; and of HDM, one for
    each of the `subsets` of modalities, () without HDM."""
    whole = len(modalities) * width
    enhanced = {"sdtps": whole} if has_sdtps else {}
    if subsets:
        enhanced["moe"] = len(subsets) * width
    original = {"original": whole} if one_head else dict.fromkeys(modalities, width)
    columns = {1: slice(whole), 2: slice(whole if enhanced else 0, None), 3: slice(None)}
    unfused = [frozenset({modality}) for modality in modalities]
    added = unfused * has_sdtps + [frozenset(names) for names in subsets]
    sources = {1: unfused, 2: added or unfused, 3: unfused + added}
    return FeatureLayout(enhanced | original, tuple(enhanced), columns, sources)
