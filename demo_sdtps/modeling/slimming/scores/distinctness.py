"""A score of patches that needs no training."""

import torch

from demo_sdtps.modeling.sdtps import cosines
from demo_sdtps.modeling.slimming.scores.base import Context, Score


class Distinctness(Score):
    """1 - cos(x_i, mean_j x_j) in the own modality, float32 in [0, 2], without gradient: the background is most of a picture
    and much alike, so that the mean is near to it."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return 1 - cosines(tokens, tokens.detach().float().mean(dim=-2).unsqueeze(0))[0]
