"""Aggregation of image patches with one weight MLP per kind of caption (docs/seps.md)."""
import torch
from torch import nn

from demo_sdtps.modeling.sdtps import aggregate, aggregation_mlp


class DualTokenAggregation(nn.Module):
    """Aggregates the patches selected by the sparse and the dense caption: W_s V_s + W_d V_d, two weight MLPs, one scale.

    `embed_dim` is C, `out_tokens` N_c.
    """

    def __init__(self, embed_dim: int, out_tokens: int, dim_ratio: float = 0.2):
        super().__init__()
        self.weight_sparse = aggregation_mlp(embed_dim, out_tokens, dim_ratio)
        self.weight_dense = aggregation_mlp(embed_dim, out_tokens, dim_ratio)
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Logits of the weights W_s and W_d: (B, S, C) → two of (B, N_c, S)."""
        return [self._logits(weight, tokens) for weight in (self.weight_sparse, self.weight_dense)]

    def forward(self, sparse: torch.Tensor, sparse_decision: torch.Tensor, dense: torch.Tensor | None = None,
                dense_decision: torch.Tensor | None = None) -> torch.Tensor:
        """Tokens (B, S, C) and decisions (B, S) of the sparse and optionally the dense caption → (B, N_c, C)."""
        merged = aggregate(sparse, self._logits(self.weight_sparse, sparse), sparse_decision)
        if dense is None or dense_decision is None:
            return merged
        return merged + aggregate(dense, self._logits(self.weight_dense, dense), dense_decision)

    def _logits(self, weight: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return weight(tokens).transpose(1, 2) * self.scale
