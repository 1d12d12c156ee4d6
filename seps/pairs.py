"""What images and captions bring to their comparison, and the bests of every pair's words and tokens (docs/seps.md)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from demo_sdtps.seps.relevance import MaxSim, bests


class Texts(NamedTuple):
    """Captions: their words at unit length (T, L, C), where there is none the first one again, which changes no maximum;
    which are there (T, L), and how many (T,); the mean of the words as they were (T, C)."""

    words: torch.Tensor
    counts: torch.Tensor
    lengths: torch.Tensor
    mean: torch.Tensor

    def part(self, first: int, last: int) -> Texts:
        """Some of the captions, as wide as the longest among them."""
        words, counts, lengths, mean = (value[first:last] for value in self)
        width = int(lengths.max())
        return Texts(words[:, :width].contiguous(), counts[:, :width], lengths, mean)


class Images(NamedTuple):
    """What of the images needs no caption: patches (V, N, C), class token at unit length (V, 1, C) or (V, 0, C), cosine of
    the patches with their mean (V, N), and of every branch predicted scores (V, N) and aggregation logits (V, N_c, N)."""

    patches: torch.Tensor
    class_token: torch.Tensor
    own: torch.Tensor
    predicted: tuple[torch.Tensor, ...]
    logits: tuple[torch.Tensor, ...]

    def part(self, first: int, last: int) -> Images:
        """Some of the images."""
        patches, class_token, own, *branches = (
            tuple(each[first:last] for each in value) if isinstance(value, tuple) else value[first:last] for value in self)
        return Images(patches, class_token, own, *branches)


def as_texts(name: str, words: torch.Tensor, lengths: torch.Tensor | Sequence[int]) -> Texts:
    """Captions (T, L, C) with their lengths, checked; what lies beyond a length is not read. Raises `ValueError`."""
    lengths = torch.as_tensor(lengths, device=words.device)
    if lengths.is_floating_point() or words.ndim != 3 or not len(words) or lengths.shape != words.shape[:1]:
        raise ValueError(f"{name}_embs {tuple(words.shape)} must be (captions, words, width), not empty, and {name}_lens "
                         f"{tuple(lengths.shape)} one whole number for each caption.")
    if not 1 <= int(lengths.min()) <= int(lengths.max()) <= words.shape[1]:
        raise ValueError(f"{name}_lens are from {int(lengths.min())} to {int(lengths.max())}, but a caption has at least 1 "
                         f"word and these are padded to {words.shape[1]}.")
    counts = torch.arange(words.shape[1], device=words.device) < lengths.unsqueeze(1)
    words = words.float().masked_fill(~counts.unsqueeze(-1), 0.0)
    unit = F.normalize(words, dim=-1)
    return Texts(torch.where(counts.unsqueeze(-1), unit, unit[:, :1]), counts, lengths, words.sum(dim=1) / lengths.unsqueeze(1))


def bests_of_merged(images: Images, masks: Sequence[torch.Tensor], text: Texts, tall: int) -> MaxSim:
    """Merge what every caption keeps of every image and match it with the words: log masks (V, T, N) of each branch → the
    bests of words (V, T, L) and of merged tokens (V, T, N_c); `tall` images at a time."""
    parts = [_merged_bests(images.part(top, top + tall), [mask[top:top + tall] for mask in masks], text)
             for top in range(0, len(images.patches), tall)]
    return MaxSim(*map(torch.cat, zip(*parts, strict=True)))


def bests_of_single(images: Images, shares: torch.Tensor, text: Texts) -> MaxSim:
    """The bests of words (V, T, L) and of tokens (V, T, 1 or 2) where these are the class token, if there is one, and the
    extra token, the mean of the dropped patches by their shares (T, V, N)."""
    extra = F.normalize(shares.transpose(0, 1) @ images.patches, dim=-1)
    seen = [torch.einsum("vpc,tlc->vtlp", images.class_token, text.words),
            torch.einsum("vtc,tlc->vtl", extra, text.words).unsqueeze(-1)]
    return bests(torch.cat(seen, dim=-1))


def _merged_bests(images: Images, masks: Sequence[torch.Tensor], text: Texts) -> MaxSim:
    # Weights over all patches in place of gathered ones: no token is copied, and W_s V_s + W_d V_d = (W_s + W_d) V.
    weights = sum((logits.unsqueeze(1) + mask.unsqueeze(2)).softmax(dim=-1)
                  for logits, mask in zip(images.logits, masks, strict=True))
    merged = (weights.flatten(1, 2) @ images.patches).unflatten(1, weights.shape[1:3])
    # By caption, for which one image's tokens need no copy; divided by their norms afterwards, as products are fewer.
    products = merged.transpose(0, 1).flatten(1, 2) @ text.words.mT
    products = products.unflatten(1, (len(merged), -1)).transpose(0, 1)
    return bests((products / merged.norm(dim=-1, keepdim=True).clamp_min(1e-12)).mT)
