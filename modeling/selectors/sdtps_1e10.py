"""SDTPS with the decision mask as the known implementation applies it: (1 - D)·1e10 subtracted from the logits.

Equal to SDTPS in the forward; its straight-through gradient is 1e10 times as large (docs/method.md). An experiment of
studies/explosion.yml, which shows what that does to a training; not for any other use.
"""
import torch

from demo_sdtps.modeling.sdtps import TokenAggregation, softmax_mean
from demo_sdtps.modeling.selectors.sdtps import SDTPS


def aggregate(tokens: torch.Tensor, logits: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
    """tokens (B, S, C), logits (B, A, S), decision (B, S) → (B, A, C)."""
    return softmax_mean(tokens, logits.float() - (1 - decision.float()).unsqueeze(-2) * 1e10)


class SDTPS1e10(SDTPS):
    def aggregate(self, aggregation: TokenAggregation, kept: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
        return aggregate(kept, aggregation.logits(kept), decision)
