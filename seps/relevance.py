"""HRPA: relevance of image tokens and caption words by their maximum cosine similarities (docs/seps.md)."""

from functools import reduce
from operator import add

import torch
import torch.nn.functional as F
from torch import nn

LEAK = 0.1  # negative slope of the LeakyReLU of the open version

MASKED = -1000.0  # cosine of a masked token: below all others, so that it is never the maximum


class HRPA(nn.Module):
    """Relevance of image tokens and words: mean of the maxima of the words plus mean of the maxima of the tokens.

    The open version applies LeakyReLU(0.1) to the cosines; the paper version adds an MLP of the `top_k` largest maxima of the
    words, and one of those of the tokens.
    """

    def __init__(self, use_paper_version: bool = False, top_k: int = 5):
        super().__init__()
        self.top_k = top_k
        self.relevance_mlp: nn.Sequential | None = None
        if use_paper_version:
            layers = nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1)
            self.relevance_mlp = nn.Sequential(*layers)

    def forward(
        self,
        patch_features: torch.Tensor,
        word_features: torch.Tensor,
        patch_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Image tokens (B_v, P, C), words of one caption (L, C) or (B_v, L, C), 1 for valid tokens (B_v, P) → (B_v, 1).

        At least one token of each image must be valid; the others are ignored.
        """
        settings = self.relevance_mlp, self.top_k
        return mask_xattn_one_text(patch_features, word_features, patch_mask, *settings)


def mask_xattn_one_text(
    patch_features: torch.Tensor,
    word_features: torch.Tensor,
    patch_mask: torch.Tensor | None = None,
    relevance_mlp: nn.Module | None = None,
    top_k: int = 5,
) -> torch.Tensor:
    """HRPA as a function: the paper version with a `relevance_mlp`, else the open version. patch_features (B_v, P, C),
    word_features (L, C) or (B_v, L, C), patch_mask (B_v, P) → (B_v, 1)."""
    words = F.normalize(word_features, dim=-1)
    cosines = words @ F.normalize(patch_features, dim=-1).transpose(1, 2)
    tokens = None if patch_mask is None else patch_mask > 0
    maxima = max_sim(cosines, tokens)
    return relevance(*maxima, None, tokens, relevance_mlp, top_k).unsqueeze(-1)


def max_sim(
    cosines: torch.Tensor, tokens: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines (..., L, P) of words and tokens → the maximum of every word over the tokens (..., L), and of every token over the
    words (..., P); tokens (..., P) are True where valid (None: all)."""
    among_tokens = cosines if tokens is None else cosines.masked_fill(~tokens.unsqueeze(-2), MASKED)
    return among_tokens.amax(dim=-1), cosines.amax(dim=-2)


def relevance(
    of_words: torch.Tensor,
    of_tokens: torch.Tensor,
    words: torch.Tensor | None = None,
    tokens: torch.Tensor | None = None,
    relevance_mlp: nn.Module | None = None,
    top_k: int = 5,
) -> torch.Tensor:
    """Relevance from the maxima of L words (..., L) and P tokens (..., P) by `max_sim` → (...). words (..., L) and tokens (...,
    P) are True where valid (None: all)."""
    terms = []
    for maxima, valid in ((of_words, words), (of_tokens, tokens)):
        if relevance_mlp is None:
            # After the maximum rather than before: LeakyReLU is monotonic.
            maxima = F.leaky_relu(maxima, LEAK)
        else:
            largest = _largest(maxima, valid, top_k).to(next(relevance_mlp.parameters()).dtype)
            terms.append(relevance_mlp(largest).squeeze(-1))
        terms.append(_mean(maxima, valid))
    return reduce(add, terms)


def _mean(values: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    if valid is None:
        return values.mean(dim=-1)
    return values.masked_fill(~valid, 0.0).sum(dim=-1) / valid.sum(dim=-1).clamp_min(1)


def _largest(values: torch.Tensor, valid: torch.Tensor | None, count: int) -> torch.Tensor:
    """The `count` largest valid values in descending order, padded with zeros: (..., L) → (..., count)."""
    if valid is not None:
        values = values.masked_fill(~valid, -torch.inf)
    largest = values.topk(min(count, values.shape[-1]), dim=-1).values
    largest = largest.masked_fill(largest == -torch.inf, 0.0)
    return F.pad(largest, (0, count - largest.shape[-1]))
