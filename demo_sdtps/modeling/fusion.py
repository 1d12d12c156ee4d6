"""HDM and ATMoE, DeMo's fusion of the three modalities (docs/method.md; DeMo, AAAI 2025).

HDM computes one feature per subset of the modalities; ATMoE weights the seven features by experts. For speed HDM pools tokens
before it projects them, and ATMoE's experts are one batched product. Tokens are not copied outside autocast: the backbone's
patches are strided views, which torch.bmm accepts.
"""

import math
from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from timm.layers import QuickGELU
from torch import nn

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.modeling.modalities import SUBSETS, ByModality, modality_subsets

HEAD_WIDTH = 64  # channels of one of HDM's attention heads


class HDM(nn.Module):
    """Hierarchical decoupling module: a learned query per subset attends to the tokens of the subset's modalities.

    The parameters are those of multi-head attentions, seven of three modalities, stacked in the order of `SUBSETS`: together
    they are one attention, in which a subset does not see the tokens of other modalities.
    """

    pairs: torch.Tensor
    of_subset: torch.Tensor

    def __init__(self, width: int, dropout: float = 0.1, modalities: Sequence[str] = MODALITIES):
        super().__init__()
        self.modalities, self.subsets = tuple(modalities), modality_subsets(modalities)
        if width % HEAD_WIDTH:
            raise UserError(
                f"MODEL.HDM is True, but the backbone's width {width} is no multiple of {HEAD_WIDTH}, the width of an "
                "attention head; choose another MODEL.TRANSFORMER_TYPE or set MODEL.HDM to False."
            )
        count = len(self.subsets)
        self.heads, self.dropout = width // HEAD_WIDTH, dropout
        self.by_head = self.heads, HEAD_WIDTH  # (heads, channels)
        self.query = nn.Parameter(torch.randn(count, width) * width**-0.5)
        self.in_proj_weight = nn.Parameter(torch.empty(count, 3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(count, 3 * width))
        self.out_proj_weight = nn.Parameter(torch.empty(count, width, width))
        self.out_proj_bias = nn.Parameter(torch.zeros(count, width))
        for projection, output in zip(self.in_proj_weight, self.out_proj_weight, strict=True):
            # The initialisation of torch's MultiheadAttention.
            nn.init.xavier_uniform_(projection)
            nn.init.kaiming_uniform_(output, a=math.sqrt(5))
        # The pairs of a modality and a subset that contains it, twelve of three modalities: only these are computed.
        members = [name in subset for name in self.modalities for subset in self.subsets.values()]
        pairs = [place for place, is_member in enumerate(members) if is_member]
        of_subset = torch.eye(count)[[pair % count for pair in pairs]]
        self.register_buffer("pairs", torch.tensor(pairs), persistent=False)  # (12,), of 3·7
        self.register_buffer("of_subset", of_subset, persistent=False)  # (12, 7), 1 at its subset

    def forward(self, patches: ByModality, global_feats: ByModality) -> torch.Tensor:
        """Patch tokens (B, N, C) and global features (B, C) by modality → features of the subsets (B, 7, C).

        The single query does not depend on the input, so keys and values need not be projected token by token: the logits are
        tokens·(W_kᵀq), where b_k cancels in the softmax, and the tokens are pooled before W_v. After dropout the weights do
        not sum to 1, so their sum multiplies b_v.
        """
        # One unbind for all: every single index would allocate a gradient as large as the whole tensor.
        (query, key, value), (query_bias, _, value_bias) = (
            stacked.unflatten(1, (3, -1)).unbind(1)
            for stacked in (self.in_proj_weight, self.in_proj_bias)
        )
        globals_ = torch.stack([global_feats[name] for name in self.modalities])
        weights = self.attention(patches, globals_, query, query_bias, key)
        pooled = self.pool(weights.flatten(2, 3).index_select(2, self.pairs), patches, globals_)
        values = torch.einsum("shdc,bshc->bshd", value.unflatten(1, self.by_head), pooled)
        bias = value_bias.unflatten(1, self.by_head)
        whole = (values + weights.sum(dim=(1, 2)).unsqueeze(-1) * bias).flatten(2)
        bias, weight = self.out_proj_bias.unsqueeze(1), self.out_proj_weight.transpose(1, 2)
        return torch.baddbmm(bias, whole.transpose(0, 1), weight).transpose(0, 1)

    def attention(
        self,
        patches: ByModality,
        globals_: torch.Tensor,
        query: torch.Tensor,
        query_bias: torch.Tensor,
        key: torch.Tensor,
    ) -> torch.Tensor:
        """Patches (B, N, C), global features (3, B, C), W_q (7, C, C), b_q (7, C) and W_k (7, C, C) → the attention weights
        (B, 1 + N, modalities, 7, heads), the global feature's first, 0 for a modality that is not in the subset; without
        dropout a subset's sum to 1."""
        scale, bias, token = HEAD_WIDTH**-0.5, query_bias.unsqueeze(-1), self.query.unsqueeze(-1)
        queries = torch.baddbmm(bias, query, token, beta=scale, alpha=scale)
        # W_kᵀq, whose product with a token is the token's logit.
        by_head = (part.unflatten(1, self.by_head) for part in (queries, key))
        keys = torch.einsum("shdn,shdc->shc", *by_head).flatten(1)
        keys = (self.of_subset @ keys).unflatten(1, (self.heads, -1))
        keys = keys.unflatten(0, (len(self.modalities), -1)).flatten(1, 2).transpose(1, 2)
        batch = globals_.shape[1]
        of_patches = [
            torch.bmm(patches[name], each.expand(batch, -1, -1))
            for name, each in zip(self.modalities, keys, strict=True)
        ]
        of_globals = torch.bmm(globals_, keys).transpose(0, 1).flatten(1).unsqueeze(1)
        logits = torch.cat([of_globals, torch.cat(of_patches, dim=2)], dim=1)
        logits = logits.unflatten(2, (-1, self.heads))
        shape = len(self.modalities), len(self.subsets)
        outside = logits.new_full((*logits.shape[:2], prod(shape), self.heads), -torch.inf)
        joint = outside.index_copy(2, self.pairs, logits).unflatten(2, shape)
        joint = joint.flatten(1, 2).softmax(dim=1)
        joint = F.dropout(joint, self.dropout, self.training)
        return joint.unflatten(1, (-1, shape[0]))

    def pool(
        self, weights: torch.Tensor, patches: ByModality, globals_: torch.Tensor
    ) -> torch.Tensor:
        """Σ weight·token: weights (B, 1 + N, 12, heads) → (B, 7, heads, C)."""
        weights = weights.unflatten(2, (len(self.modalities), -1)).flatten(3)
        of_globals = weights[:, 0].unsqueeze(-1) * globals_.transpose(0, 1).unsqueeze(2)
        of_patches = weights[:, 1:].permute(2, 0, 3, 1)
        pooled = [
            torch.baddbmm(start, weight, patches[name])
            for name, start, weight in zip(
                self.modalities, of_globals.unbind(1), of_patches.unbind(), strict=True
            )
        ]
        pooled = torch.cat(pooled, dim=1).unflatten(1, (-1, self.heads))
        return (self.of_subset.t() @ pooled.flatten(2)).unflatten(2, (self.heads, -1))


class ATMoE(nn.Module):
    """Attention-triggered mixture of experts: HEAD experts for each of HDM's `count` features, weighted by attention."""

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
        by_head = self.heads, self.head_width
        query = self.query(self.gate(features.flatten(1))).unflatten(1, by_head)
        # As in HDM the key's projection is applied to the one query, not to the seven features.
        query = torch.einsum("hdc,bhd->bhc", self.key.weight.unflatten(0, by_head), query)
        logits = torch.einsum("bhc,bec->bhe", query, features) * self.head_width**-0.5
        gates = logits.softmax(dim=-1)  # (B, heads, 7)
        weighted = experts.unflatten(1, (self.heads, -1)) * gates.unsqueeze(-1)
        return weighted.transpose(1, 2).flatten(1)
