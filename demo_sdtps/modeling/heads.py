"""BNNeck: the head of every feature (docs/method.md; Luo et al., Bag of Tricks for re-identification, 2019)."""

from typing import NamedTuple

import torch
from torch import nn


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
