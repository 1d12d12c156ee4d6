"""HRPA: how well the tokens of images and the words of captions match, by the best of each for each (spec 12)."""
import torch
import torch.nn.functional as F
from torch import nn

LEAK = 0.1
"""Slope below zero of the open version's LeakyReLU."""

NEVER = -1000.0
"""What a masked cosine counts as: below all of them, so that it is never the best."""


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
        (B_v, 1)."""
        return mask_xattn_one_text(patch_features, word_features, patch_mask, self.relevance_mlp, self.top_k)

    def of_cosines(self, cosines: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Cosines (..., L, P) of words and tokens, words (..., L) True where they count → (...)."""
        return relevance(cosines, words, None, self.relevance_mlp, self.top_k)


def mask_xattn_one_text(patch_features: torch.Tensor, word_features: torch.Tensor, patch_mask: torch.Tensor | None = None,
                        relevance_mlp: nn.Module | None = None, top_k: int = 5) -> torch.Tensor:
    """HRPA as a function: the paper version where there is a `relevance_mlp`, else the open one.

    patch_features (B_v, P, C), word_features (L, C) or (B_v, L, C), patch_mask (B_v, P) → (B_v, 1).
    """
    words = F.normalize(word_features, dim=-1)
    cosines = words @ F.normalize(patch_features, dim=-1).transpose(1, 2)
    tokens = None if patch_mask is None else patch_mask > 0
    return relevance(cosines, None, tokens, relevance_mlp, top_k).unsqueeze(-1)


def relevance(cosines: torch.Tensor, words: torch.Tensor | None = None, tokens: torch.Tensor | None = None,
              relevance_mlp: nn.Module | None = None, top_k: int = 5) -> torch.Tensor:
    """The relevance of L words and P tokens by their cosines (..., L, P) → (...).

    words (..., L) and tokens (..., P) are True for those that count (None: all).
    """
    of_words = _seen(cosines, tokens, -1).amax(dim=-1)
    of_tokens = _seen(cosines, words, -2).amax(dim=-2)
    total = 0.0
    for best, counts in ((of_words, words), (of_tokens, tokens)):
        if relevance_mlp is None:
            # Of the best rather than of all: LeakyReLU keeps the order.
            best = F.leaky_relu(best, LEAK)
        else:
            total = total + relevance_mlp(_largest(best, counts, top_k)).squeeze(-1)
        total = total + _mean(best, counts)
    return total


def _seen(cosines: torch.Tensor, counts: torch.Tensor | None, dim: int) -> torch.Tensor:
    """`cosines` with what does not count along `dim` below all others."""
    if counts is None:
        return cosines
    return cosines.masked_fill(~(counts.unsqueeze(-1) if dim == -2 else counts.unsqueeze(-2)), NEVER)


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
