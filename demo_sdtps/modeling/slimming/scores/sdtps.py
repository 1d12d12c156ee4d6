"""The score of SDTPS between the backbone's blocks (docs/method.md)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.modalities import Grid
from demo_sdtps.modeling.slimming.scores.base import Context, Score


class SDTPSScore(Score):
    """(1 - 2β)·MLP + β·Σ weight·guidance, the published score, guided by the class tokens; an MLP per modality.

    Missing modalities do not guide.
    """

    is_autocast = True

    def __init__(
        self,
        width: int,
        grid: Grid,
        beta: float = 0.25,
        modalities: Sequence[str] = MODALITIES,
        **settings: Any,
    ):
        super().__init__(width, grid, **settings)
        self.beta = beta
        self.score_predictor = nn.ModuleDict({name: sdtps.score_mlp(width) for name in modalities})

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        guides = context.global_feats
        weights = sdtps.guide_weights(context.modality, guides, context.missing)
        guidance = sdtps.cosine_guidance(tokens, torch.stack([guides[guide] for guide in weights]))
        predicted = sdtps.predict(self.score_predictor[context.modality], tokens)
        return sdtps.guided_score(predicted, guidance, weights.values(), self.beta)
