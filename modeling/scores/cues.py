"""Scores of patches that need no training, and the studies' controls: chance and the mask itself."""
import torch

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.sdtps import cosines


def distinctness(tokens: torch.Tensor) -> torch.Tensor:
    """1 - cos(x_i, mean_j x_j) of tokens (B, N, C) → (B, N) float32 in [0, 2], without gradient.

    The background is most of a picture and much alike, so that the mean is near to it.
    """
    return 1 - cosines(tokens, tokens.detach().float().mean(dim=-2).unsqueeze(0))[0]


class Distinctness(Score):
    """`distinctness` in the own modality."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return distinctness(tokens)


class Random(Score):
    """Random numbers: in training new ones; in evaluation those of a generator that starts anew with every chunk."""

    is_random = True

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        seed = MODALITIES.index(context.modality) if context.modality in MODALITIES else 0
        generator = None if self.training else torch.Generator(tokens.device).manual_seed(seed)
        return torch.rand(tokens.shape[:2], device=tokens.device, generator=generator)


class Mask(Score):
    """The image's own mask, in evaluation too: what a score without error would keep."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return context.foreground[context.modality].float()
