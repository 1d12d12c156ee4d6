"""The heads (docs/method.md; Luo et al., Bag of Tricks for re-identification, 2019), and whose the columns of features are."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from demo_sdtps.config import RETURN_PATTERNS


class TrainingOutput(NamedTuple):
    """What a training forward returns: by head, enhanced ones first, and the mean loss of slimming's scores."""

    logits: dict[str, torch.Tensor]  # (B, K)
    features: dict[str, torch.Tensor]  # (B, D), before the BatchNorm; float32
    auxiliary: torch.Tensor | None  # (1,); None where no score has a loss


class BNNeck(nn.Module):
    """BatchNorm with a frozen bias, then a linear classifier without bias: features (B, D) → logits (B, K)."""

    def __init__(self, dim: int, num_class: int):
        super().__init__()
        self.bottleneck = nn.BatchNorm1d(dim)
        self.bottleneck.bias.requires_grad_(False)
        self.classifier = nn.Linear(dim, num_class, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.bottleneck(features))


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
    columns = slice(whole), slice(whole if enhanced else 0, None), slice(None)
    unfused = [frozenset({modality}) for modality in modalities]
    added = unfused * has_sdtps + [frozenset(names) for names in subsets]
    sources = unfused, added or unfused, unfused + added
    columns_of = dict(zip(RETURN_PATTERNS, columns, strict=True))
    sources_of = dict(zip(RETURN_PATTERNS, sources, strict=True))
    return FeatureLayout(enhanced | original, tuple(enhanced), columns_of, sources_of)
