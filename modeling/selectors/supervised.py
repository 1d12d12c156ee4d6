"""A score that learns from foreground masks in training, and needs none in evaluation."""
import torch
import torch.nn.functional as F
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.selectors.base import ByModality, Context, Score


class Supervised(Score):
    """LayerNorm → Linear(SLIM_HIDDEN) → GELU → Linear(1) by modality; its logit is the score.

    The loss is MODEL.SLIM_LOSS_WEIGHT times the binary cross-entropy against the patch's share of the foreground
    (`Context.foreground`); its gradient reaches the backbone.
    """

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        hidden, self.loss_weight = cfg.MODEL.SLIM_HIDDEN, cfg.MODEL.SLIM_LOSS_WEIGHT
        self.heads = nn.ModuleDict({modality: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(),
                                                            nn.Linear(hidden, 1)) for modality in MODALITIES})

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.heads[context.modality](tokens).squeeze(-1).float()

    def loss(self, scores: ByModality, context: Context) -> torch.Tensor | None:
        if not (self.training and context.foreground):
            return None
        losses = [F.binary_cross_entropy_with_logits(score, context.foreground[modality].float())
                  for modality, score in scores.items()]
        return self.loss_weight * torch.stack(losses).mean()

    def weight(self, score: torch.Tensor) -> torch.Tensor:
        return score.sigmoid()
