"""HRPA: relevance of image tokens and caption words by their maximum cosine similarities, and these maxima of all pairs of
images and captions (docs/seps.md)."""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

LEAK = 0.1  # negative slope of the LeakyReLU of the open version

MASKED = -1000.0  # cosine of a masked token: below all others, so that it is never the maximum


class MaxSim(NamedTuple):
    """Maximum cosine of every word over the tokens (..., L), and of every token over the words (..., P)."""

    of_words: torch.Tensor
    of_tokens: torch.Tensor


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
    """HRPA as a function: the paper version with a `relevance_mlp`, else the open version.

    patch_features (B_v, P, C), word_features (L, C) or (B_v, L, C), patch_mask (B_v, P) → (B_v, 1).
    """
    words = F.normalize(word_features, dim=-1)
    cosines = words @ F.normalize(patch_features, dim=-1).transpose(1, 2)
    tokens = None if patch_mask is None else patch_mask > 0
    return relevance(max_sim(cosines, tokens), None, tokens, relevance_mlp, top_k).unsqueeze(-1)


def max_sim(cosines: torch.Tensor, tokens: torch.Tensor | None = None) -> MaxSim:
    """Maxima of the cosines (..., L, P) of words and tokens; tokens (..., P) are True where valid (None: all)."""
    among_tokens = cosines if tokens is None else cosines.masked_fill(~tokens.unsqueeze(-2), MASKED)
    return MaxSim(among_tokens.amax(dim=-1), cosines.amax(dim=-2))


def concat(some: MaxSim, others: MaxSim) -> MaxSim:
    """Maxima of the same words and of the concatenated tokens."""
    of_tokens = torch.cat([some.of_tokens, others.of_tokens], dim=-1)
    return MaxSim(torch.maximum(some.of_words, others.of_words), of_tokens)


def relevance(
    matches: MaxSim,
    words: torch.Tensor | None = None,
    tokens: torch.Tensor | None = None,
    relevance_mlp: nn.Module | None = None,
    top_k: int = 5,
) -> torch.Tensor:
    """Relevance from the maxima of L words (..., L) and P tokens (..., P) → (...).

    words (..., L) and tokens (..., P) are True where valid (None: all).
    """
    terms = []
    for maxima, valid in ((matches.of_words, words), (matches.of_tokens, tokens)):
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


class Texts(NamedTuple):
    """Captions: normalised words (T, L, C), padded with the first word, which does not change a maximum; valid words (T, L);
    lengths (T,), not necessarily on the words' device; mean of the words before normalisation (T, C)."""

    words: torch.Tensor
    valid: torch.Tensor
    lengths: torch.Tensor
    mean: torch.Tensor

    def part(self, first: int, last: int) -> "Texts":
        """Slice of the captions, truncated to the longest among them."""
        words, valid, lengths, mean = (value[first:last] for value in self)
        width = int(lengths.max())
        return Texts(words[:, :width].contiguous(), valid[:, :width], lengths, mean)


class ImageFeatures(NamedTuple):
    """Features of the images that do not depend on the caption: patches (V, N, C), normalised class token (V, 1, C) or
    (V, 0, C), cosine of the patches with their mean (V, N), and of each branch predicted scores (V, N) and aggregation logits
    (V, N_c, N)."""

    patches: torch.Tensor
    class_token: torch.Tensor
    self_cosine: torch.Tensor
    predicted: tuple[torch.Tensor, ...]
    logits: tuple[torch.Tensor, ...]

    def part(self, first: int, last: int) -> "ImageFeatures":
        """Slice of the images."""
        whole = (value[first:last] for value in self[:3])
        branches = (tuple(value[first:last] for value in values) for values in self[3:])
        return ImageFeatures._make((*whole, *branches))


def as_texts(name: str, words: torch.Tensor, lengths: torch.Tensor | Sequence[int]) -> Texts:
    """Checked captions from words (T, L, C) and lengths (T,); the padding is not read. Raises `ValueError`."""
    # where they are: a GPU would be waited for at every look at them
    lengths = torch.as_tensor(lengths)
    fits = words.ndim == 3 and len(words) > 0 and lengths.shape == words.shape[:1]
    if not fits or not 1 <= int(lengths.min()) <= int(lengths.max()) <= words.shape[1]:
        raise ValueError(
            f"{name}_embs {tuple(words.shape)} must be (captions, words, width), not empty, and {name}_lens "
            f"{lengths.tolist()} the number of words of each caption, at least 1."
        )
    counts = lengths.to(words.device, non_blocking=True).unsqueeze(1)
    valid = torch.arange(words.shape[1], device=words.device) < counts
    words = words.float().masked_fill(~valid.unsqueeze(-1), 0.0)
    unit = F.normalize(words, dim=-1)
    unit = torch.where(valid.unsqueeze(-1), unit, unit[:, :1])
    return Texts(unit, valid, lengths, words.sum(dim=1) / counts)


def max_sim_of_merged(
    images: ImageFeatures, masks: Sequence[torch.Tensor], text: Texts, tall: int
) -> MaxSim:
    """Aggregate the patches selected for every pair and match them with the words, `tall` images at a time.

    Log masks (V, T, N) of each branch → maxima of words (V, T, L) and of aggregated tokens (V, T, N_c).
    """
    blocks = []
    for top in range(0, len(images.patches), tall):
        rows = images.part(top, top + tall)
        # Weights over all patches instead of gathered patches: no token is copied, and W_s V_s + W_d V_d = (W_s + W_d) V.
        by_branch = [
            (logits.unsqueeze(1) + mask[top : top + tall].unsqueeze(2)).softmax(dim=-1)
            for logits, mask in zip(rows.logits, masks, strict=True)
        ]
        weights = reduce(add, by_branch)
        merged = (weights.flatten(1, 2) @ rows.patches).unflatten(1, weights.shape[1:3])
        # Batched by caption, so that the tokens of one image need no copy; the norms divide the products, which are fewer.
        products = merged.transpose(0, 1).flatten(1, 2) @ text.words.mT
        products = products.unflatten(1, (len(merged), -1)).transpose(0, 1)
        norms = merged.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        blocks.append(max_sim((products / norms).mT))
    return MaxSim(*map(torch.cat, zip(*blocks, strict=True)))


def single_max_sim(images: ImageFeatures, weights: torch.Tensor, text: Texts) -> MaxSim:
    """Match the class token, if there is one, and the extra token with the words.

    The extra token is the mean of the dropped patches with weights (T, V, N). → maxima of words (V, T, L) and of tokens
    (V, T, 1 or 2).
    """
    extra = F.normalize(weights.transpose(0, 1) @ images.patches, dim=-1)
    cosines = [
        torch.einsum("vpc,tlc->vtlp", images.class_token, text.words),
        torch.einsum("vtc,tlc->vtl", extra, text.words).unsqueeze(-1),
    ]
    return max_sim(torch.cat(cosines, dim=-1))
