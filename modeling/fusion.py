"""HDM and ATMoE, DeMo's fusion of the three modalities (spec 5; DeMo, AAAI 2025).

HDM decouples them into one feature per subset of the modalities; ATMoE weighs the seven features by experts. Both are
written for speed: HDM pools tokens before it projects them, ATMoE's experts are one batched product.
"""
import math

import torch
import torch.nn.functional as F
from timm.layers import QuickGELU
from torch import nn

from config import MODALITIES, UserError

SUBSETS = {"r": ("RGB",), "n": ("NI",), "t": ("TI",), "rn": ("RGB", "NI"), "rt": ("RGB", "TI"), "nt": ("NI", "TI"),
           "rnt": ("RGB", "NI", "TI")}
"""The modalities that each of HDM's seven queries attends to, by DeMo's names."""

HEAD_WIDTH = 64
"""Channels of one of HDM's attention heads."""


class HDM(nn.Module):
    """Hierarchical decoupling module: a learned query per subset attends to the tokens of the subset's modalities.

    The parameters are those of seven multi-head attentions, stacked in the order of `SUBSETS`. Raises `UserError` for a
    width that 64 does not divide.
    """

    def __init__(self, width: int, dropout: float = 0.1):
        super().__init__()
        if width % HEAD_WIDTH:
            raise UserError(f"MODEL.HDM is True, but the trunk's width {width} is no multiple of {HEAD_WIDTH}, the width of an "
                            "attention head; choose another MODEL.TRANSFORMER_TYPE or set MODEL.HDM to False.")
        count = len(SUBSETS)
        self.heads, self.dropout = width // HEAD_WIDTH, dropout
        self.query = nn.Parameter(torch.randn(count, width) * width ** -0.5)
        self.in_proj_weight = nn.Parameter(torch.empty(count, 3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(count, 3 * width))
        self.out_proj_weight = nn.Parameter(torch.empty(count, width, width))
        self.out_proj_bias = nn.Parameter(torch.zeros(count, width))
        for projection, output in zip(self.in_proj_weight, self.out_proj_weight, strict=True):
            # As torch's attention starts.
            nn.init.xavier_uniform_(projection)
            nn.init.kaiming_uniform_(output, a=math.sqrt(5))
        absent = [[modality not in subset for modality in MODALITIES] for subset in SUBSETS.values()]
        self.register_buffer("absent", torch.tensor(absent), persistent=False)

    def forward(self, patches: dict[str, torch.Tensor], globals_: dict[str, torch.Tensor]) -> torch.Tensor:
        """Patch tokens (B, N, C) and globals (B, C) by modality → features of the subsets (B, 7, C).

        As there is one query, which no input changes, keys and values need not be projected token by token: the scores
        are tokens·(W_kᵀq), where b_k cancels in the softmax, and the tokens are pooled before W_v. Dropout leaves weights
        that do not sum to 1, so their sum multiplies b_v.
        """
        tokens = torch.cat([part for modality in MODALITIES
                            for part in (globals_[modality].unsqueeze(1), patches[modality])], dim=1)
        weights = self.attention(tokens)
        pooled = (weights.flatten(1, 2) @ tokens).view(*weights.shape[:3], -1)
        _, _, value_weight = self._by_head(self.in_proj_weight)
        _, _, value_bias = self._by_head(self.in_proj_bias)
        values = torch.einsum("bshc,shdc->bshd", pooled, value_weight) + weights.sum(-1, keepdim=True) * value_bias
        return torch.einsum("bsc,sdc->bsd", values.flatten(2), self.out_proj_weight) + self.out_proj_bias

    def attention(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (B, 3L, C), the modalities one after the other → attention weights (B, 7, heads, 3L)."""
        query_weight, key_weight, _ = self._by_head(self.in_proj_weight)
        query_bias, _, _ = self._by_head(self.in_proj_bias)
        query = torch.einsum("sc,shdc->shd", self.query, query_weight) + query_bias
        seen_as_key = torch.einsum("shd,shdc->shc", query / math.sqrt(HEAD_WIDTH), key_weight)
        scores = torch.einsum("btc,shc->bsht", tokens, seen_as_key)
        absent = self.absent.repeat_interleave(tokens.shape[1] // len(MODALITIES), dim=1)
        weights = scores.masked_fill(absent[:, None, :], -torch.inf).softmax(dim=-1)
        return F.dropout(weights, self.dropout, self.training)

    def _by_head(self, projection: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(7, 3C, …) → the query's, key's and value's part (7, heads, 64, …)."""
        return projection.unflatten(1, (3, self.heads, HEAD_WIDTH)).unbind(1)


class ATMoE(nn.Module):
    """Attention-triggered mixture of experts: HEAD experts for each of HDM's features, weighed by attention between them.

    Raises `UserError` for a width that the number of heads does not divide.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        if width % heads:
            raise UserError(f"MODEL.HEAD is {heads}, which does not divide the trunk's width {width}; choose a divisor such as "
                            f"{next(count for count in range(heads, 0, -1) if width % count == 0)}.")
        count, self.heads, self.head_width = len(SUBSETS), heads, width // heads
        self.gate = nn.Sequential(nn.Linear(count * width, width), QuickGELU(), nn.BatchNorm1d(width))
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        # The seven experts of the first head, of the second, …
        self.expert_weight = nn.Parameter(torch.empty(heads * count, self.head_width, self.head_width))
        self.expert_bias = nn.Parameter(torch.empty(heads * count, self.head_width))
        self.activation = QuickGELU()
        self.norm = nn.BatchNorm1d(count * width)  # of all experts: a BatchNorm does not mix its channels
        bound = self.head_width ** -0.5  # as torch's linear layers start
        nn.init.uniform_(self.expert_weight, -bound, bound)
        nn.init.uniform_(self.expert_bias, -bound, bound)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """HDM's features (B, 7, C) → the weighed features, concatenated (B, 7C)."""
        inputs = features.unflatten(2, (self.heads, self.head_width)).transpose(1, 2).flatten(1, 2)  # (B, heads·7, d)
        experts = torch.einsum("bec,edc->bed", inputs, self.expert_weight) + self.expert_bias
        experts = self.norm(self.activation(experts).flatten(1)).view_as(experts)
        weighed = experts.unflatten(1, (self.heads, -1)) * self.gates(features).unsqueeze(-1)
        return weighed.transpose(1, 2).flatten(1)

    def gates(self, features: torch.Tensor) -> torch.Tensor:
        """HDM's features (B, 7, C) → each head's weights of the seven (B, heads, 7), summing to 1."""
        query = self.query(self.gate(features.flatten(1))).unflatten(1, (self.heads, self.head_width))
        key = self.key(features).unflatten(2, (self.heads, self.head_width))
        return (torch.einsum("bhd,behd->bhe", query, key) * self.head_width ** -0.5).softmax(dim=-1)
