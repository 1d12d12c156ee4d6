"""Scores of patches that need no training, and the studies' controls: chance, and the mask itself."""
import torch
import torch.nn.functional as F

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.sdtps import cosines


def distinctness(tokens: torch.Tensor) -> torch.Tensor:
    """1 - cos(x_i, mean_j x_j) of tokens (B, N, C) → (B, N) float32 in [0, 2], without gradient.

    The background is most of a picture and much alike, so that the mean is near to it.
    """
    return 1 - cosines(tokens, tokens.detach().float().mean(dim=-2).unsqueeze(0))[0]


def at_border(positions: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Whether each of the places `positions` (…) of a grid of (rows, columns), row by row, is at its border; (…) bool."""
    row, column = positions // grid[1], positions % grid[1]
    return (row == 0) | (row == grid[0] - 1) | (column == 0) | (column == grid[1] - 1)


class Distinctness(Score):
    """`distinctness` in the own modality."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return distinctness(tokens)


class Border(Score):
    """1 - mean cosine with the patches at the picture's border, in the own modality, float32, without gradient.

    The border is background where a picture is a crop around its object (the boundary prior of saliency detection: Wei et al.,
    Geodesic saliency using background priors, ECCV 2012). The others count a little, for stages where few of it are left.
    """

    OTHERS = 0.01  # weight of a patch that is not at the border

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        is_border = at_border(context.positions_of(context.modality), context.grid)
        with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
            directions = F.normalize(tokens.float(), dim=-1)
            weights = is_border.float().clamp_min(self.OTHERS)
            background = torch.einsum("bn,bnc->bc", weights / weights.sum(dim=1, keepdim=True), directions)
            return 1 - torch.einsum("bnc,bc->bn", directions, background)


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
