"""Scores of patches that need no training, and the studies' controls: chance, the mean mask, and the mask itself."""
import torch

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.sdtps import cosines
from demo_sdtps.modeling.tokens import ByModality
from demo_sdtps.runtime.distributed import all_reduce

MOMENTUM = 0.01  # least share of a batch in the map of `MeanMask`


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


class MeanMask(Score):
    """A running mean of the training images' masks at each place of the grid, the same for all modalities.

    The mean over the batches so far, and after 1 / MOMENTUM batches an exponential one; of the batches of all processes.
    """

    map: torch.Tensor  # (N,) float32
    updates: torch.Tensor  # (N,): batches that had the place

    def __init__(self, width: int, grid: tuple[int, int], **settings: object):
        super().__init__(width, grid, **settings)
        self.register_buffer("map", torch.zeros(grid[0] * grid[1]))
        self.register_buffer("updates", torch.zeros(grid[0] * grid[1]))

    def scores(self, context: Context) -> ByModality:
        if self.training and context.foreground:
            self.update(context)
        return super().scores(context)

    @torch.no_grad()
    def update(self, context: Context) -> None:
        """Move the map of the positions that the batch has towards their mean in the masks."""
        total, count = torch.zeros_like(self.map), torch.zeros_like(self.updates)
        for modality in context.tokens:
            positions = context.positions_of(modality).flatten()
            total.index_add_(0, positions, context.foreground[modality].flatten().to(total.dtype))
            count.index_add_(0, positions, torch.ones_like(positions, dtype=count.dtype))
        total, count = all_reduce(total), all_reduce(count)
        self.updates += count > 0
        rate = self.updates.clamp_min(1).reciprocal().clamp_min(MOMENTUM) * (count > 0)
        self.map.lerp_(total / count.clamp_min(1), rate)

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.map[context.positions_of(context.modality)]


class Mask(Score):
    """The image's own mask, in evaluation too: what a score without error would keep."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return context.foreground[context.modality].float()
