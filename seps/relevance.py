"""HRPA: how well the tokens of images and the words of captions match, by the best of each for each (docs/seps.md)."""
from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

LEAK = 0.1
"""Slope below zero of the open version's LeakyReLU."""

NEVER = -1000.0
"""What a masked cosine counts as: below all of them, so that it is never the best."""


class MaxSim(NamedTuple):
    """Cosine of every word with its best token (..., L), and of every token with its best word (..., P)."""

    of_words: torch.Tensor
    of_tokens: torch.Tensor


class HRPA(nn.Module):
    """Relevance of image tokens and words: mean of each word's best token plus mean of each token's best word.

    The open version passes the cosines through LeakyReLU(0.1); the paper version adds an MLP of the `top_k` largest of
    both lists.
    """

    def __init__(self, use_paper_version: bool = False, top_k: int = 5):
        super().__init__()
        self.top_k = top_k
        if use_paper_version:
            self.relevance_mlp = nn.Sequential(nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1))
        else:
            self.relevance_mlp = None

    def forward(self, patch_features: torch.Tensor, word_features: torch.Tensor,
                patch_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Image tokens (B_v, P, C), the words of one caption (L, C) or (B_v, L, C), 1 for tokens that count (B_v, P) →
        (B_v, 1). At least one token of an image must count; the others are no word's best and in neither list of bests."""
        return mask_xattn_one_text(patch_features, word_features, patch_mask, self.relevance_mlp, self.top_k)

    def of_bests(self, found: MaxSim, words: torch.Tensor) -> torch.Tensor:
        """The bests of words (..., L), which count where `words` (..., L) is True, and of tokens (..., P) → (...)."""
        return relevance(found, words, None, self.relevance_mlp, self.top_k)


def mask_xattn_one_text(patch_features: torch.Tensor, word_features: torch.Tensor, patch_mask: torch.Tensor | None = None,
                        relevance_mlp: nn.Module | None = None, top_k: int = 5) -> torch.Tensor:
    """HRPA as a function: the paper version where there is a `relevance_mlp`, else the open one.

    patch_features (B_v, P, C), word_features (L, C) or (B_v, L, C), patch_mask (B_v, P) → (B_v, 1).
    """
    words = F.normalize(word_features, dim=-1)
    cosines = words @ F.normalize(patch_features, dim=-1).transpose(1, 2)
    tokens = None if patch_mask is None else patch_mask > 0
    return relevance(bests(cosines, tokens), None, tokens, relevance_mlp, top_k).unsqueeze(-1)


def bests(cosines: torch.Tensor, tokens: torch.Tensor | None = None) -> MaxSim:
    """The largest of every word's and of every token's cosines (..., L, P); tokens (..., P) are True for those that can be a
    word's best (None: all)."""
    among_tokens = cosines if tokens is None else cosines.masked_fill(~tokens.unsqueeze(-2), NEVER)
    return MaxSim(among_tokens.amax(dim=-1), cosines.amax(dim=-2))


def concat(some: MaxSim, others: MaxSim) -> MaxSim:
    """The bests of the same words and of both's tokens together."""
    return MaxSim(torch.maximum(some.of_words, others.of_words), torch.cat([some.of_tokens, others.of_tokens], dim=-1))


def relevance(found: MaxSim, words: torch.Tensor | None = None, tokens: torch.Tensor | None = None,
              relevance_mlp: nn.Module | None = None, top_k: int = 5) -> torch.Tensor:
    """The relevance of L words and P tokens by their bests (..., L) and (..., P) → (...).

    words (..., L) and tokens (..., P) are True for those that count (None: all).
    """
    total = 0.0
    for best, counts in ((found.of_words, words), (found.of_tokens, tokens)):
        if relevance_mlp is None:
            # Of the best rather than of all: LeakyReLU keeps the order.
            best = F.leaky_relu(best, LEAK)
        else:
            largest = _largest(best, counts, top_k).to(relevance_mlp[0].weight.dtype)
            total = total + relevance_mlp(largest).squeeze(-1)
        total = total + _mean(best, counts)
    return total


def _mean(values: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
    """Mean over the last dimension of those that count: (..., L) → (...)."""
    if counts is None:
        return values.mean(dim=-1)
    return values.masked_fill(~counts, 0.0).sum(dim=-1) / counts.sum(dim=-1).clamp_min(1)


def _largest(values: torch.Tensor, counts: torch.Tensor | None, count: int) -> torch.Tensor:
    """The `count` largest of those that count, in descending order and followed by zeros: (..., L) → (..., count)."""
    if counts is not None:
        values = values.masked_fill(~counts, -torch.inf)
    largest = values.topk(min(count, values.shape[-1]), dim=-1).values
    largest = largest.masked_fill(largest == -torch.inf, 0.0)
    return F.pad(largest, (0, count - largest.shape[-1]))
