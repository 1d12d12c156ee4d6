"""Scores from running means over the training images: by the place of a patch on the grid, or by the mean patch."""
from abc import abstractmethod

import torch
import torch.distributed as dist
import torch.nn.functional as F
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.collectives import sum_of_all
from demo_sdtps.modeling.sdtps import cosines
from demo_sdtps.modeling.selectors.base import ByModality, Context, Score
from demo_sdtps.modeling.selectors.cues import distinctness

MOMENTUM = 0.01  # least share of a batch in the map


class RunningMap(Score):
    """A running mean over the training images of some evidence at each place of the grid, the same for all modalities, unless
    a subclass has other rows (`shape`, `rows`).

    The mean over the batches so far, and after 1 / MOMENTUM batches an exponential one; of the batches of all processes.
    """

    map: torch.Tensor
    updates: torch.Tensor

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        self.register_buffer("map", torch.zeros(self.shape(width, grid)))
        self.register_buffer("updates", torch.zeros(len(self.map)))  # batches that had evidence of the place

    def shape(self, width: int, grid: tuple[int, int]) -> tuple[int, ...]:
        """Of the map: a number for each place."""
        return (grid[0] * grid[1],)

    def rows(self, context: Context) -> torch.Tensor:
        """(B, N) int64: the row of the map that each patch of `context.modality` belongs to."""
        return context.places_of(context.modality)

    @abstractmethod
    def evidence(self, tokens: torch.Tensor, context: Context) -> torch.Tensor | None:
        """tokens (B, N, C) of `context.modality` → (B, N) and the shape of the map's rows; None where there is none."""

    def scores(self, context: Context) -> ByModality:
        if self.training:
            self.update(context)
        return super().scores(context)

    @torch.no_grad()
    def update(self, context: Context) -> None:
        """Move the map of the places that the batch has towards their mean evidence."""
        total, count = torch.zeros_like(self.map), torch.zeros_like(self.updates)
        for modality, tokens in context.tokens.items():
            seen = self.evidence(tokens, context.of(modality))
            if seen is not None:
                rows = self.rows(context.of(modality)).flatten()
                total.index_add_(0, rows, seen.flatten(0, 1).to(total.dtype))
                count.index_add_(0, rows, torch.ones_like(rows, dtype=count.dtype))
        if dist.is_initialized():
            total, count = sum_of_all(total), sum_of_all(count)
        self.updates += count > 0
        rate = self.updates.clamp_min(1).reciprocal().clamp_min(MOMENTUM) * (count > 0)
        count, rate = (values.view(-1, *[1] * (total.ndim - 1)) for values in (count, rate))
        self.map.lerp_(total / count.clamp_min(1), rate)

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.map[self.rows(context)]


class Position(RunningMap):
    """The mean distinctness of each place: where the training images have what stands out."""

    def evidence(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return distinctness(tokens)


class DistinctPosition(Position):
    """The product of a patch's distinctness and that of its place."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return super().score(tokens, context) * distinctness(tokens)


class GivenMap(Score):
    """MODEL.SLIM_MAP at the place of the patch, interpolated bilinearly to the grid (as `interpolate` of torch, align_corners
    False); it is never trained, so that any checkpoint can be evaluated with it."""

    map: torch.Tensor

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        given = torch.tensor(cfg.MODEL.SLIM_MAP, dtype=torch.float32)
        self.register_buffer("map", F.interpolate(given[None, None], grid, mode="bilinear").flatten(), persistent=False)

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.map[context.places_of(context.modality)]


class RunningDistinctness(RunningMap):
    """`distinctness` from the mean patch of the training images of the own modality, where that is from the image's own."""

    def shape(self, width: int, grid: tuple[int, int]) -> tuple[int, ...]:
        return len(MODALITIES), width

    def rows(self, context: Context) -> torch.Tensor:
        return torch.full_like(context.places_of(context.modality), MODALITIES.index(context.modality))

    def evidence(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return tokens

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        mean = self.map[MODALITIES.index(context.modality)].expand(1, tokens.shape[0], -1)
        return 1 - cosines(tokens, mean)[0]
