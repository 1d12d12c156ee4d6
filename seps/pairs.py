"""Precomputed features of images and captions, and the maximum similarities of all pairs (docs/seps.md)."""
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
import torch.nn.functional as F

from demo_sdtps.seps.relevance import MaxSim, max_sim


class Texts(NamedTuple):
    """Captions: normalised words (T, L, C), padded with the first word, which does not change a maximum; valid words (T, L);
    lengths (T,), not necessarily on the words' device; mean of the words before normalisation (T, C)."""

    words: torch.Tensor
    valid: torch.Tensor
    lengths: torch.Tensor
    mean: torch.Tensor

    def part(self, first: int, last: int) -> Texts:
        """Slice of the captions, truncated to the longest among them."""
        words, valid, lengths, mean = (value[first:last] for value in self)
        width = int(lengths.max())
        return Texts(words[:, :width].contiguous(), valid[:, :width], lengths, mean)


class Images(NamedTuple):
    """Features of the images that do not depend on the caption: patches (V, N, C), normalised class token (V, 1, C) or
    (V, 0, C), cosine of the patches with their mean (V, N), and of each branch predicted scores (V, N) and aggregation logits
    (V, N_c, N)."""

    patches: torch.Tensor
    class_token: torch.Tensor
    own: torch.Tensor
    predicted: tuple[torch.Tensor, ...]
    logits: tuple[torch.Tensor, ...]

    def part(self, first: int, last: int) -> Images:
        """Slice of the images."""
        rows = slice(first, last)
        return Images(self.patches[rows], self.class_token[rows], self.own[rows],
                      tuple(scores[rows] for scores in self.predicted), tuple(logits[rows] for logits in self.logits))


def as_texts(name: str, words: torch.Tensor, lengths: torch.Tensor | Sequence[int]) -> Texts:
    """Checked captions from words (T, L, C) and lengths (T,); the padding is not read. Raises `ValueError`."""
    lengths = torch.as_tensor(lengths)  # where they are: a GPU would be waited for at every look at them
    if lengths.is_floating_point() or words.ndim != 3 or not len(words) or lengths.shape != words.shape[:1]:
        raise ValueError(f"{name}_embs {tuple(words.shape)} must be (captions, words, width), not empty, and {name}_lens "
                         f"{tuple(lengths.shape)} one whole number for each caption.")
    if not 1 <= int(lengths.min()) <= int(lengths.max()) <= words.shape[1]:
        raise ValueError(f"{name}_lens are from {int(lengths.min())} to {int(lengths.max())}, but a caption has at least 1 "
                         f"word and these are padded to {words.shape[1]}.")
    counts = lengths.to(words.device, non_blocking=True).unsqueeze(1)
    valid = torch.arange(words.shape[1], device=words.device) < counts
    words = words.float().masked_fill(~valid.unsqueeze(-1), 0.0)
    unit = F.normalize(words, dim=-1)
    return Texts(torch.where(valid.unsqueeze(-1), unit, unit[:, :1]), valid, lengths, words.sum(dim=1) / counts)


def merged_max_sim(images: Images, masks: Sequence[torch.Tensor], text: Texts, tall: int) -> MaxSim:
    """Aggregate the patches selected for every pair and match them with the words, `tall` images at a time.

    Log masks (V, T, N) of each branch → maxima of words (V, T, L) and of aggregated tokens (V, T, N_c).
    """
    parts = [_merged_max_sim(images.part(top, top + tall), [mask[top:top + tall] for mask in masks], text)
             for top in range(0, len(images.patches), tall)]
    return MaxSim(*map(torch.cat, zip(*parts, strict=True)))


def single_max_sim(images: Images, weights: torch.Tensor, text: Texts) -> MaxSim:
    """Match the class token, if there is one, and the extra token with the words.

    The extra token is the mean of the dropped patches with weights (T, V, N). → maxima of words (V, T, L) and of tokens
    (V, T, 1 or 2).
    """
    extra = F.normalize(weights.transpose(0, 1) @ images.patches, dim=-1)
    cosines = [torch.einsum("vpc,tlc->vtlp", images.class_token, text.words),
               torch.einsum("vtc,tlc->vtl", extra, text.words).unsqueeze(-1)]
    return max_sim(torch.cat(cosines, dim=-1))


def _merged_max_sim(images: Images, masks: Sequence[torch.Tensor], text: Texts) -> MaxSim:
    # Weights over all patches instead of gathered patches: no token is copied, and W_s V_s + W_d V_d = (W_s + W_d) V.
    weights = reduce(add, ((logits.unsqueeze(1) + mask.unsqueeze(2)).softmax(dim=-1)
                           for logits, mask in zip(images.logits, masks, strict=True)))
    merged = (weights.flatten(1, 2) @ images.patches).unflatten(1, weights.shape[1:3])
    # Batched by caption, so that the tokens of one image need no copy; the norms divide the products, which are fewer.
    products = merged.transpose(0, 1).flatten(1, 2) @ text.words.mT
    products = products.unflatten(1, (len(merged), -1)).transpose(0, 1)
    return max_sim((products / merged.norm(dim=-1, keepdim=True).clamp_min(1e-12)).mT)
