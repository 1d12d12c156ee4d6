"""A score that learns from foreground masks in training, and needs none in evaluation."""
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.tokens import ByModality

HIDDEN = 64
"""Channels of the MLP; with 16 the gain is 3.2 mAP in place of 5.9 (docs/results_slimming.md)."""


class Supervised(Score):
    """LayerNorm → Linear(HIDDEN) → GELU → Linear(1) by modality; its logit is the score.

    The loss is `loss_weight` (MODEL.SLIM_LOSS_WEIGHT) times the binary cross-entropy against the patch's share of the
    foreground (`Context.foreground`); its gradient reaches the backbone.
    """

    def __init__(self, width: int, grid: tuple[int, int], loss_weight: float = 5.0,
                 modalities: Sequence[str] = MODALITIES, **settings: object):
        super().__init__(width, grid, **settings)
        self.loss_weight = loss_weight
        self.heads = nn.ModuleDict({modality: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, HIDDEN), nn.GELU(),
                                                            nn.Linear(HIDDEN, 1)) for modality in modalities})

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.heads[context.modality](tokens).squeeze(-1).float()

    def loss(self, scores: ByModality, context: Context) -> torch.Tensor | None:
        if not (self.training and context.foreground):
            return None
        losses = [F.binary_cross_entropy_with_logits(score, context.foreground[modality].float())
                  for modality, score in scores.items()]
        return self.loss_weight * torch.stack(losses).mean()
