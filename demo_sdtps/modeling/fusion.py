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
from demo_sdtps.modeling.modalities import ByModality

ByPair = dict[tuple[str, str], torch.Tensor]  # by (subset, modality)
Projection = tuple[Sequence[torch.Tensor], torch.Tensor]  # weights and bias
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
HEAD_WIDTH = 64  # channels of one of HDM's attention heads


def modality_subsets(modalities: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The entries of SUBSETS that have no other modality than these."""
    return {name: subset for name, subset in SUBSETS.items() if set(subset) <= set(modalities)}


class HDM(nn.Module):
    """Hierarchical decoupling module: a learned query per subset attends to the tokens of the subset's modalities.

    The parameters are those of multi-head attentions, seven of three modalities, stacked in the order of `SUBSETS`.
    """

    def __init__(self, width: int, dropout: float = 0.1, modalities: Sequence[str] = MODALITIES):
        super().__init__()
        self.subsets = modality_subsets(modalities)
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

    def forward(self, patches: ByModality, global_feats: ByModality) -> torch.Tensor:
        """Patch tokens (B, N, C) and global features (B, C) by modality → features of the subsets (B, 7, C).

        The single query does not depend on the input, so keys and values need not be projected token by token: the logits are
        tokens·(W_kᵀq), where b_k cancels in the softmax, and the tokens are pooled before W_v. After dropout the weights do
        not sum to 1, so their sum multiplies b_v.
        """
        query, key, (value_weights, value_bias) = self.projections()
        weights = self.attention(patches, global_feats, self.keys(query, key))
        pooled = self.pool(weights, patches, global_feats)
        values, sums = [], []
        for (subset, modalities), weight in zip(self.subsets.items(), value_weights, strict=True):
            pairs = [(subset, modality) for modality in modalities]
            # sum() would add 0 first
            tokens = reduce(torch.add, [pooled[pair] for pair in pairs])
            values.append(torch.einsum("hdc,bhc->bhd", self._by_head(weight), tokens))
            sums.append(reduce(torch.add, [weights[pair].sum(dim=-1) for pair in pairs]))
        value_bias = value_bias.unflatten(1, (self.heads, HEAD_WIDTH))
        bias = torch.stack(sums, dim=1).unsqueeze(-1) * value_bias
        whole = (torch.stack(values, dim=1) + bias).flatten(2)
        return torch.einsum("sdc,bsc->bsd", self.out_proj_weight, whole) + self.out_proj_bias

    def weights(self, patches: ByModality, global_feats: ByModality) -> ByPair:
        """The attention weights of a forward, (B, heads, 1 + N), the global feature's first."""
        query, key, _ = self.projections()
        return self.attention(patches, global_feats, self.keys(query, key))

    def projections(self) -> list[Projection]:
        """W_q and b_q, W_k and b_k, W_v and b_v of the subsets, each (7, C, C) and (7, C)."""
        # One unbind for all: every single index would allocate a gradient as large as the whole tensor.
        matrices = self.in_proj_weight.unflatten(1, (3, -1)).flatten(0, 1).unbind()
        biases = self.in_proj_bias.chunk(3, dim=1)
        return [(matrices[place::3], bias) for place, bias in enumerate(biases)]

    def keys(self, query: Projection, key: Projection) -> dict[str, torch.Tensor]:
        """W_kᵀq of each subset's heads, (heads, C) by subset; its product with a token is the token's logit."""
        keys = {}
        rows = zip(self.subsets, self.query, *query, key[0], strict=True)
        for subset, token, weight, bias, key_weight in rows:
            heads = F.linear(token.unsqueeze(0), weight, bias) / math.sqrt(HEAD_WIDTH)
            heads = heads.view(self.heads, 1, HEAD_WIDTH)
            keys[subset] = (heads @ self._by_head(key_weight)).squeeze(1)
        return keys

    def attention(
        self, patches: ByModality, global_feats: ByModality, keys: dict[str, torch.Tensor]
    ) -> ByPair:
        """→ weights (B, heads, 1 + N), the global's first; without dropout a subset's sum to 1."""
        logits, weights = {}, {}
        for modality, subsets in self.holders.items():
            tokens, key = patches[modality], torch.cat([keys[subset] for subset in subsets])
            of_global = F.linear(global_feats[modality], key).unsqueeze(-1)
            of_patches = torch.bmm(key.expand(tokens.shape[0], -1, -1), tokens.transpose(1, 2))
            products = torch.cat([of_global, of_patches], dim=-1)
            for subset, chunk in zip(subsets, products.chunk(len(subsets), dim=1), strict=True):
                logits[subset, modality] = chunk
        for subset, modalities in self.subsets.items():
            joint = torch.cat([logits[subset, modality] for modality in modalities], dim=-1)
            joint = F.dropout(joint.softmax(dim=-1), self.dropout, self.training)
            chunks = joint.chunk(len(modalities), dim=-1)
            for modality, chunk in zip(modalities, chunks, strict=True):
                weights[subset, modality] = chunk
        return weights

    def pool(self, weights: ByPair, patches: ByModality, global_feats: ByModality) -> ByPair:
        """Σ weight·token: weights (B, heads, 1 + N) → (B, heads, C)."""
        pooled = {}
        for modality, subsets in self.holders.items():
            joint = torch.cat([weights[subset, modality] for subset in subsets], dim=1)
            sums = torch.bmm(joint[..., 1:], patches[modality])
            sums.add_(joint[..., :1] * global_feats[modality].unsqueeze(1))
            for subset, chunk in zip(subsets, sums.chunk(len(subsets), dim=1), strict=True):
                pooled[subset, modality] = chunk
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
        layers = nn.Linear(count * width, width), QuickGELU(), nn.BatchNorm1d(width)
        self.gate = nn.Sequential(*layers)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        # The seven experts of the first head, of the second, …
        shape = heads * count, self.head_width
        self.expert_weight = nn.Parameter(torch.empty(*shape, self.head_width))
        self.expert_bias = nn.Parameter(torch.empty(shape))
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
        by_head = self.heads, self.head_width
        query = self.query(self.gate(features.flatten(1))).unflatten(1, by_head)
        # As in HDM the key's projection is applied to the one query, not to the seven features.
        query = torch.einsum("hdc,bhd->bhc", self.key.weight.unflatten(0, by_head), query)
        logits = torch.einsum("bhc,bec->bhe", query, features) * self.head_width**-0.5
        return logits.softmax(dim=-1)
