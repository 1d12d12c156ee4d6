"""Controls of the studies: chance, the mean mask, and the mask itself."""
import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.selectors.base import Context, Score
from demo_sdtps.modeling.selectors.position import RunningMap


class Random(Score):
    """Random numbers: in training new ones; in evaluation those of a generator that starts anew with every chunk."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        generator = None if self.training else torch.Generator(tokens.device).manual_seed(MODALITIES.index(context.modality))
        return torch.rand(tokens.shape[:2], device=tokens.device, generator=generator)


class MeanMask(RunningMap):
    """The mean of the training images' masks, the same for every image."""

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        self.register_buffer("of_masks", torch.ones(()))  # so that a checkpoint of another map does not fit

    def evidence(self, tokens: torch.Tensor, context: Context) -> torch.Tensor | None:
        return context.foreground[context.modality] if context.foreground else None


class Mask(Score):
    """The image's own mask, in evaluation too: what a score without error would keep."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return context.foreground[context.modality].float()
