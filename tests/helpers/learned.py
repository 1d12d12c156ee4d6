"""A score that learns, which the project has none of: MODEL.SLIM_SCORE learned:Learned."""

import torch
import torch.nn.functional as F
from torch import nn

from vit_slim import Score, State
from vit_slim.stage import split_rows


class Learned(Score):
    """An MLP for the images of each name, which learns the patches of more saliency than their mean."""

    def __init__(self, width, grid=(0, 0), names=State.names, **settings):
        super().__init__(width, grid, **settings)
        self.heads = nn.ModuleDict()
        for name in names:
            layers = nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 1)
            self.heads[name] = nn.Sequential(*layers)

    reads_saliency = property(lambda self: self.training)

    def score(self, tokens, context):
        rows = split_rows(tokens, context.names).items()
        return torch.cat([self.heads[name](each) for name, each in rows]).squeeze(-1).float()

    def loss(self, scores, context):
        """Without the patches of a missing image."""
        if not self.training:
            return None
        masks = (context.saliency > context.saliency.mean(dim=1, keepdim=True)).float()
        masks = masks.gather(1, context.places(scores))
        present = None if context.missing is None else 1.0 - context.missing.float()
        return 5 * F.binary_cross_entropy_with_logits(scores, masks, present)
