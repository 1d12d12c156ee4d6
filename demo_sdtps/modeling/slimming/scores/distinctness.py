"""A score of patches that needs no training."""

import torch

from demo_sdtps.modeling.sdtps import cosines
from demo_sdtps.modeling.slimming.scores.base import Context, Score


def distinctness(tokens: torch.Tensor) -> torch.Tensor:
    """1 - cos(x_i, mean_j x_j) of tokens (B, N, C) → (B, N) float32 in [0, 2], without gradient.

    The background is most of a picture and much alike, so that the mean is near to it.
    """
    return 1 - cosines(tokens, tokens.detach().float().mean(dim=-2).unsqueeze(0))[0]


class Distinctness(Score):
    """`distinctness` in the own modality."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return distinctness(tokens)
