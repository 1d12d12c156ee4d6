"""The mean mask, the same for every image: a control of the studies."""
import torch

from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.tokens import ByModality
from demo_sdtps.runtime.distributed import all_reduce

MOMENTUM = 0.01  # least share of a batch in the map


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
