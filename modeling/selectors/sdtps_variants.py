"""Variants of SDTPS that the studies compare it with; experiments, not parts of the method."""
from dataclasses import replace

import torch
from timm.layers import QuickGELU
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.sdtps import TokenAggregation, softmax_mean
from demo_sdtps.modeling.selectors.base import Context, Selection
from demo_sdtps.modeling.selectors.sdtps import SDTPS


def aggregate_1e10(tokens: torch.Tensor, logits: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
    """tokens (B, S, C), logits (B, A, S), decision (B, S) → (B, A, C)."""
    return softmax_mean(tokens, logits.float() - (1 - decision.float()).unsqueeze(-2) * 1e10)


class SDTPS1e10(SDTPS):
    """Applies the decision mask as the known implementation does: (1 - D)·1e10 subtracted from the logits.

    Equal to SDTPS in the forward; its straight-through gradient is 1e10 times as large (docs/method.md). studies/explosion.yml
    shows what that does to a training.
    """

    def aggregate(self, aggregation: TokenAggregation, kept: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
        return aggregate_1e10(kept, aggregation.logits(kept), decision)


class CentredSDTPS(SDTPS):
    """Guidance that tells images apart: cosines of tokens and global features less their means over the batch, on which the
    guidance of an image therefore depends (studies/diagnosis.yml)."""

    def guidance(self, tokens: torch.Tensor, guides: torch.Tensor) -> torch.Tensor:
        return super().guidance(tokens - tokens.mean(dim=(0, 1)), guides - guides.mean(dim=1, keepdim=True))


class ProjectedSDTPS(SDTPS):
    """LayerNorm → Linear(C → C) → quick GELU over the tokens of SDTPS, by modality, as PIFE has them for the global features
    (studies/diagnosis.yml)."""

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        self.project = nn.ModuleDict({modality: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), QuickGELU())
                                      for modality in MODALITIES})

    def select(self, tokens: torch.Tensor, score: torch.Tensor, context: Context) -> Selection:
        selection = super().select(tokens, score, context)
        return replace(selection, tokens=self.project[context.modality](selection.tokens))
