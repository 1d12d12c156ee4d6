"""HDM and ATMoE, DeMo's fusion of the three modalities (docs/method.md; DeMo, AAAI 2025).

HDM computes one feature per subset of the modalities; ATMoE weights the seven features by experts. For speed HDM pools tokens
before it projects them, and ATMoE's experts are one batched product. Tokens are not copied outside autocast: the backbone's
patches are strided views, which torch.bmm accepts.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from timm.layers import QuickGELU
from torch import nn

from demo_sdtps.config import MODALITIES, UserError

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


def subsets_of(modalities: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The entries of SUBSETS that have no other modality than these."""
    return {name: subset for name, subset in SUBSETS.items() if set(subset) <= set(modalities)}


HEAD_WIDTH = 64  # channels of one of HDM's attention heads


class HDM(nn.Module):
    """Hierarchical decoupling module: a learned query per subset attends to the tokens of the subset's modalities.

    The parameters are those of multi-head attentions, seven of three modalities, stacked in the order of `SUBSETS`.
    """

    def __init__(self, width: int, dropout: float = 0.1, modalities: Sequence[str] = MODALITIES):
        super().__init__()
        self.subsets = subsets_of(modalities)
        # The subsets that contain a modality, four of three modalities: only these pairs (subset, modality) are computed.
        self.holders = {
            modality: [name for name, subset in self.subsets.items() if modality in subset]
            for modality in modalities
        }
        if width % HEAD_WIDTH:
            raise UserError(
                f"MODEL.HDM is True, but the backbone's width {width} is no multiple of {HEAD_WIDTH}, the width of "
                "attention head; choose another MODEL.TRANSFORMER_TYPE or set MODEL.HDM to False."
            )
        count = len(self.subsets)
        self.heads, self.dropout = width // HEAD_WIDTH, dropout
        self.query = nn.Parameter(torch.randn(count, width) * width**-0.5)
        self.in_proj_weight = nn.Parameter(torch.empty(count, 3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(count, 3 * width))
        self.out_proj_weight = nn.Parameter(torch.empty(count, width, width))
        self.out_proj_bias = nn.Parameter(torch.zeros(count, width))
        for projection, output in zip(self.in_proj_weight, self.out_proj_weight, strict=True):
            # The initialisation of torch's MultiheadAttention.
            nn.init.xavier_uniform_(projection)
            nn.init.kaiming_uniform_(output, a=math.sqrt(5))

    def forward(
        self, patches: dict[str, torch.Tensor], global_feats: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Patch tokens (B, N, C) and global features (B, C) by modality → features of the subsets (B, 7, C).

        The single query does not depend on the input, so keys and values need not be projected token by token: the logits are
        tokens·(W_kᵀq), where b_k cancels in the softmax, and the tokens are pooled before W_v. After dropout the weights do
        not sum to 1, so their sum multiplies b_v.
        """
        query_weights, key_weights, value_weights = self.projections()
        query_bias, _, value_bias = self.in_proj_bias.chunk(3, dim=1)
        weights = self.attention(
            patches, global_feats, self.keys(query_weights, query_bias, key_weights)
        )
        pooled = self.pool(weights, patches, global_feats)
        values, sums = [], []
        for (subset, modalities), weight in zip(self.subsets.items(), value_weights, strict=True):
            # sum() would add 0 first
            tokens = reduce(torch.add, [pooled[subset, modality] for modality in modalities])
            values.append(torch.einsum("hdc,bhc->bhd", self._by_head(weight), tokens))
            sums.append(
                reduce(
                    torch.add, [weights[subset, modality].sum(dim=-1) for modality in modalities]
                )
            )
        bias = torch.stack(sums, dim=1).unsqueeze(-1) * value_bias.unflatten(
            1, (self.heads, HEAD_WIDTH)
        )
        values = (torch.stack(values, dim=1) + bias).flatten(2)
        return torch.einsum("sdc,bsc->bsd", self.out_proj_weight, values) + self.out_proj_bias

    def weights(
        self, patches: dict[str, torch.Tensor], global_feats: dict[str, torch.Tensor]
    ) -> dict[tuple[str, str], torch.Tensor]:
        """The attention weights of a forward, (B, heads, 1 + N) by (subset, modality), the global feature's first."""
        query_weights, key_weights, _ = self.projections()
        query_bias = self.in_proj_bias.chunk(3, dim=1)[0]
        return self.attention(
            patches, global_feats, self.keys(query_weights, query_bias, key_weights)
        )

    def projections(self) -> tuple[Sequence[torch.Tensor], ...]:
        """W_q, W_k and W_v of each subset, each (C, C)."""
        # One unbind for all: every single index would allocate a gradient as large as the whole tensor.
        matrices = self.in_proj_weight.unflatten(1, (3, -1)).flatten(0, 1).unbind()
        return matrices[::3], matrices[1::3], matrices[2::3]

    def keys(
        self,
        query_weights: Sequence[torch.Tensor],
        query_bias: torch.Tensor,
        key_weights: Sequence[torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """W_kᵀq of each subset's heads, (heads, C) by subset; its product with a token is the token's logit."""
        keys = {}
        for subset, query, *projection, key_weight in zip(
            self.subsets, self.query, query_weights, query_bias, key_weights, strict=True
        ):
            query = F.linear(query.unsqueeze(0), *projection) / math.sqrt(HEAD_WIDTH)
            keys[subset] = (
                query.view(self.heads, 1, HEAD_WIDTH) @ self._by_head(key_weight)
            ).squeeze(1)
        return keys

    def attention(
        self,
        patches: dict[str, torch.Tensor],
        global_feats: dict[str, torch.Tensor],
        keys: dict[str, torch.Tensor],
    ) -> dict[tuple[str, str], torch.Tensor]:
        """→ weights (B, heads, 1 + N) by (subset, modality), the global's first; without dropout a subset's sum to 1."""
        logits: dict[tuple[str, str], torch.Tensor] = {}
        weights: dict[tuple[str, str], torch.Tensor] = {}
        for modality, subsets in self.holders.items():
            tokens, key = patches[modality], torch.cat([keys[subset] for subset in subsets])
            attended = torch.cat(
                [
                    F.linear(global_feats[modality], key).unsqueeze(-1),
                    torch.bmm(key.expand(tokens.shape[0], -1, -1), tokens.transpose(1, 2)),
                ],
                dim=-1,
            )
            logits |= {
                (subset, modality): logits_of
                for subset, logits_of in zip(
                    subsets, attended.chunk(len(subsets), dim=1), strict=True
                )
            }
        for subset, modalities in self.subsets.items():
            logits_of = torch.cat(
                [logits[subset, modality] for modality in modalities], dim=-1
            ).softmax(dim=-1)
            chunks = F.dropout(logits_of, self.dropout, self.training).chunk(
                len(modalities), dim=-1
            )
            weights |= {
                (subset, modality): chunk
                for modality, chunk in zip(modalities, chunks, strict=True)
            }
        return weights

    def pool(
        self,
        weights: dict[tuple[str, str], torch.Tensor],
        patches: dict[str, torch.Tensor],
        global_feats: dict[str, torch.Tensor],
    ) -> dict[tuple[str, str], torch.Tensor]:
        """Σ weight·token: weights (B, heads, 1 + N) → (B, heads, C), by (subset, modality)."""
        pooled: dict[tuple[str, str], torch.Tensor] = {}
        for modality, subsets in self.holders.items():
            weights_of = torch.cat([weights[subset, modality] for subset in subsets], dim=1)
            sums = torch.bmm(weights_of[..., 1:], patches[modality]).add_(
                weights_of[..., :1] * global_feats[modality].unsqueeze(1)
            )
            pooled |= {
                (subset, modality): chunk
                for subset, chunk in zip(subsets, sums.chunk(len(subsets), dim=1), strict=True)
            }
        return pooled

    def _by_head(self, projection: torch.Tensor) -> torch.Tensor:
        """(C, C) → (heads, 64, C)."""
        return projection.unflatten(0, (self.heads, HEAD_WIDTH))


class ATMoE(nn.Module):
    """Attention-triggered mixture of experts: HEAD experts for each of HDM's `count` features, weighted by attention between
    them.
    """

    def __init__(self, width: int, heads: int, count: int = len(SUBSETS)):
        super().__init__()
        if width % heads:
            raise UserError(
                f"MODEL.HEAD is {heads}, which does not divide the backbone's width {width}; choose a divisor such "
                f"as {next(count for count in range(heads, 0, -1) if width % count == 0)}."
            )
        self.heads, self.head_width = heads, width // heads
        self.gate = nn.Sequential(
            nn.Linear(count * width, width), QuickGELU(), nn.BatchNorm1d(width)
        )
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        # The seven experts of the first head, of the second, …
        self.expert_weight = nn.Parameter(
            torch.empty(heads * count, self.head_width, self.head_width)
        )
        self.expert_bias = nn.Parameter(torch.empty(heads * count, self.head_width))
        self.activation = QuickGELU()
        # of all experts: a BatchNorm does not mix its channels
        self.norm = nn.BatchNorm1d(count * width)
        bound = self.head_width**-0.5  # the initialisation of torch's Linear
        nn.init.uniform_(self.expert_weight, -bound, bound)
        nn.init.uniform_(self.expert_bias, -bound, bound)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """HDM's features (B, 7, C) → the weighted features, concatenated (B, 7C)."""
        # (B, heads·7, d)
        inputs = features.unflatten(2, (self.heads, self.head_width)).transpose(1, 2).flatten(1, 2)
        experts = torch.einsum("edc,bec->bed", self.expert_weight, inputs) + self.expert_bias
        experts = self.norm(self.activation(experts).flatten(1)).view_as(experts)
        weighted = experts.unflatten(1, (self.heads, -1)) * self.gates(features).unsqueeze(-1)
        return weighted.transpose(1, 2).flatten(1)

    def gates(self, features: torch.Tensor) -> torch.Tensor:
        """HDM's features (B, 7, C) → each head's weights of the seven, (B, heads, 7) with sum 1."""
        query = self.query(self.gate(features.flatten(1))).unflatten(
            1, (self.heads, self.head_width)
        )
        # As in HDM the key's projection is applied to the one query, not to the seven features.
        query = torch.einsum(
            "hdc,bhd->bhc", self.key.weight.unflatten(0, (self.heads, self.head_width)), query
        )
        return (torch.einsum("bhc,bec->bhe", query, features) * self.head_width**-0.5).softmax(
            dim=-1
        )
