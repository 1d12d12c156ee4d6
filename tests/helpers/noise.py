"""A score from outside the project, whose numbers depend on the modality alone: MODEL.SLIM_SCORE noise:Noise."""

import torch
from numeric import generator

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.slimming.scores.base import Score


class Noise(Score):
    def score(self, tokens, context):
        return torch.rand(tokens.shape[:2], generator=generator(MODALITIES.index(context.modality)))
