"""Variants of SDTPS that the studies compare it with; experiments, not parts of the method."""
import torch

from demo_sdtps.modeling.sdtps import TokenAggregation, softmax_mean
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
