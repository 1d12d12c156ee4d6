"""Scores by the place of a patch on the grid, from a map that is updated in training."""
from abc import abstractmethod

import torch
import torch.distributed as dist
from yacs.config import CfgNode

from demo_sdtps.modeling.collectives import sum_of_all
from demo_sdtps.modeling.selectors.base import ByModality, Context, Score
from demo_sdtps.modeling.selectors.cues import distinctness

MOMENTUM = 0.01  # least share of a batch in the map


class RunningMap(Score):
    """A running mean over the training images of some evidence at each place of the grid, the same for all modalities.

    The mean over the batches so far, and after 1 / MOMENTUM batches an exponential one; of the batches of all processes.
    """

    map: torch.Tensor
    updates: torch.Tensor

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        self.register_buffer("map", torch.zeros(grid[0] * grid[1]))
        self.register_buffer("updates", torch.zeros(grid[0] * grid[1]))  # batches that had evidence of the place

    @abstractmethod
    def evidence(self, tokens: torch.Tensor, context: Context) -> torch.Tensor | None:
        """tokens (B, N, C) of `context.modality` → (B, N); None where there is none."""

    def scores(self, context: Context) -> ByModality:
        if self.training:
            self.update(context)
        return super().scores(context)

    @torch.no_grad()
    def update(self, context: Context) -> None:
        """Move the map of the places that the batch has towards their mean evidence."""
        total, count = torch.zeros_like(self.map), torch.zeros_like(self.map)
        for modality, tokens in context.tokens.items():
            seen = self.evidence(tokens, context.of(modality))
            if seen is not None:
                places = context.places_of(modality).flatten()
                total.index_add_(0, places, seen.flatten().to(total.dtype))
                count.index_add_(0, places, torch.ones_like(places, dtype=count.dtype))
        if dist.is_initialized():
            total, count = sum_of_all(torch.stack([total, count]))
        self.updates += count > 0
        rate = self.updates.clamp_min(1).reciprocal().clamp_min(MOMENTUM) * (count > 0)
        self.map.lerp_(total / count.clamp_min(1), rate)

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.map[context.places_of(context.modality)]


class Position(RunningMap):
    """The mean distinctness of each place: where the training images have what stands out."""

    def evidence(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return distinctness(tokens)


class DistinctPosition(Position):
    """The product of a patch's distinctness and that of its place."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return super().score(tokens, context) * distinctness(tokens)
