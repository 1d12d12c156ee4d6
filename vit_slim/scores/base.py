"""The contract of a score of patches (`Score`), its input (`Context`), and what slimming keeps by it (`StageRecord`)."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from demo_sdtps.modeling.modalities import ByModality, Grid
from demo_sdtps.runtime.errors import UserError
from vit_slim.state import State


class StageRecord(NamedTuple):
    """What one of MODEL.SLIM_BLOCKS kept of n patches: K of them. By modality."""

    scored: ByModality  # (B, n) int64: index on the grid of each patch that was scored
    score: ByModality  # (B, n)
    kept: ByModality  # (B, K) int64: index on the grid of each patch that was kept, ascending

    def mask(self, modality: str, patches: int) -> torch.Tensor:
        """(B, N) float32: 1 for a patch of the grid that was kept."""
        kept = self.kept[modality]
        zeros = torch.zeros(kept.shape[0], patches, dtype=torch.float32, device=kept.device)
        return zeros.scatter_(1, kept, 1.0)


@dataclass(frozen=True)
class Context:
    """Encoded triplets: B triplets, N patches per image, C channels. The input of a score and of SDTPS; by modality."""

    tokens: ByModality  # patch tokens (B, N, C), row by row of the grid
    global_feats: ByModality  # (B, C); inside the backbone the class tokens
    grid: Grid  # (rows, columns) of patches
    missing: ByModality = field(default_factory=dict)  # whether the image is zeros, (B, 1) bool
    # (B, N) int64 index of each patch on the grid; where it is empty patch i is at i
    positions: ByModality = field(default_factory=dict)
    state: State | None = None  # of slimming, which knows the images
    modality: str = ""  # whose patches are scored

    def places(self, modality: str) -> torch.Tensor:
        """(B, N) int64: index on the grid of each patch of a modality, also where `positions` is empty."""
        if modality in self.positions:
            return self.positions[modality]
        tokens = self.tokens[modality]
        return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)

    @property
    def images(self) -> ByModality:
        """(B, 3, H, W), inside slimming."""
        return self.state.images if self.state else {}

    @property
    def foreground(self) -> ByModality:
        """(B, N): share of each patch in the foreground mask, inside slimming; {} for none."""
        return self.at_places(self.state.foreground) if self.state else {}

    def at_places(self, whole: ByModality) -> ByModality:
        """Numbers of the whole grid (B, N) → those of the patches (B, n)."""
        return {name: rows.gather(1, self.places(name)) for name, rows in whole.items()}


class Score(nn.Module):
    """Base class of scores of patches, by which slimming (vit_slim/stage.py) and SDTPS keep the best.

    A subclass defines `score`, and where it learns `loss`. Its constructor takes the tokens' width C, the grid (rows, columns)
    of patches, and by their names the settings that it reads (`make_score`).
    """

    masks = False  # whether it reads foreground masks in training, `State.foreground`
    reads_saliency: Any = False  # whether it reads `State.saliency`

    def __init__(self, width: int, grid: Grid, **settings: object):
        super().__init__()

    def forward(self, context: Context) -> ByModality:
        """`score` of each modality, (B, n)."""
        scores = {}
        for modality, tokens in context.tokens.items():
            scores[modality] = score = self.score(tokens, replace(context, modality=modality))
            if score.shape != tokens.shape[:2]:
                raise UserError(
                    f"The score {type(self).__name__} gives {tuple(score.shape)} for {modality}, but one number "
                    f"for each patch was expected, {tuple(tokens.shape[:2])}; correct its method score."
                )
        return scores

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        """tokens (B, n, C) of `context.modality` → (B, n), the best highest."""
        raise NotImplementedError(f"{type(self).__name__} defines no score.")

    def loss(self, scores: ByModality, context: Context) -> torch.Tensor | None:
        """A loss of the scores (B, n) in training, a scalar with its weight; None for none."""
        return None
