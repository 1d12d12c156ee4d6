"""Scores that learn in training, from foreground masks or from the saliency of the images, and need neither in evaluation."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.modeling.modalities import ByModality, Grid, split_rows
from demo_sdtps.modeling.slimming.scores.base import Context, Score

OTSU = "otsu"  # in `State.computed`
HIDDEN = 64
"""Channels of the MLP; with 16 an earlier study gained 3.2 mAP in place of 5.9."""


class Supervised(Score):
    """LayerNorm → Linear(HIDDEN) → GELU → Linear(1) by modality; its logit is the score.

    The loss is `loss_weight` (MODEL.SLIM_LOSS_WEIGHT) times the binary cross-entropy against the patch's share of the
    foreground (`State.foreground`), 0 for a missing image; its gradient reaches the backbone.
    """

    masks = True
    is_autocast = True

    def __init__(
        self,
        width: int,
        grid: Grid,
        loss_weight: float = 5.0,
        modalities: Sequence[str] = MODALITIES,
        **settings: object,
    ):
        super().__init__(width, grid, **settings)
        self.loss_weight = loss_weight
        self.heads = nn.ModuleDict()
        for modality in modalities:
            layers = nn.LayerNorm(width), nn.Linear(width, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1)
            self.heads[modality] = nn.Sequential(*layers)

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.heads[context.modality](tokens).squeeze(-1).float()

    def loss(self, scores: ByModality, context: Context) -> torch.Tensor | None:
        foreground = self.foreground(context) if self.training else {}
        if not foreground:
            return None
        shares = context.at_places(foreground)
        stack = lambda rows: torch.stack([rows[modality] for modality in scores])  # noqa: E731
        weights = 1.0 - stack(context.missing).float() if context.missing else None
        entropy = F.binary_cross_entropy_with_logits(stack(scores), stack(shares).float(), weights)
        return self.loss_weight * entropy

    def foreground(self, context: Context) -> ByModality:
        """Shares (B, N) of the whole grid that the loss compares with; {} for none."""
        return context.state.foreground if context.state else {}


class SelfSupervised(Supervised):
    """`Supervised` by pseudo-masks where no masks are given: the patches whose saliency (`Saliency`), summed over the
    modalities where these keep the same places, is above Otsu's threshold."""

    masks = False

    @property
    def reads_saliency(self) -> bool:
        return self.training

    def foreground(self, context: Context) -> ByModality:
        state = context.state
        assert state is not None
        if state.foreground:
            return state.foreground
        if OTSU not in state.computed:
            scores = torch.stack(list(state.saliency.values()))
            if state.shared:
                masks = dict.fromkeys(state.saliency, above_otsu(scores.sum(dim=0)))
            else:
                masks = split_rows(above_otsu(scores.flatten(0, 1)), state.saliency)
            state.computed[OTSU] = masks
        return state.computed[OTSU]


def above_otsu(score: torch.Tensor) -> torch.Tensor:
    """score (B, N) → 1 above the threshold that makes the variance between both sides largest, else 0, (B, N) (Otsu, 1979)."""
    ordered, count = score.double().sort(dim=1).values, score.shape[1]
    below = torch.arange(1, count, device=score.device)  # numbers of patches below each threshold
    total = ordered.cumsum(dim=1)
    low, high = total[:, :-1] / below, (total[:, -1:] - total[:, :-1]) / (count - below)
    between = below * (count - below) * (high - low).square()
    # The last threshold divides nothing, as a single patch cannot be divided.
    best = F.pad(between, (0, 1)).argmax(dim=1, keepdim=True)
    return (score > ordered.gather(1, best)).to(score.dtype)
