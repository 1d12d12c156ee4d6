"""Identity, triplet and center losses over a model's (scores, feature) pairs (docs/method.md)."""
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from yacs.config import CfgNode

LABEL_SMOOTHING = 0.1


def euclidean_distance(features: torch.Tensor) -> torch.Tensor:
    """All pairs of features (B, D) → (B, B); the square is clamped at 1e-12 so that the root has a derivative."""
    square = features.square().sum(dim=1)
    squared = square[:, None] + square[None, :] - 2 * features @ features.T
    return squared.clamp(min=1e-12).sqrt()


def batch_hard_triplet_loss(features: torch.Tensor, labels: torch.Tensor, margin: float | None = None) -> torch.Tensor:
    """Mean over the batch of the loss of the farthest positive and nearest negative (Hermans et al. 2017).

    features (B, D) as they are, labels (B,). Soft margin log(1 + exp(d_ap - d_an)) where `margin` is None.
    """
    with torch.autocast(features.device.type, enabled=False):
        distance = euclidean_distance(features.float())
    same = labels[:, None] == labels[None, :]
    hardest_positive = distance.masked_fill(~same, -torch.inf).amax(dim=1)
    hardest_negative = distance.masked_fill(same, torch.inf).amin(dim=1)
    gap = hardest_positive - hardest_negative
    return (F.softplus(gap) if margin is None else F.relu(gap + margin)).mean()


def identity_loss(scores: torch.Tensor, labels: torch.Tensor, smoothing: float = LABEL_SMOOTHING) -> torch.Tensor:
    """Cross-entropy of scores (B, K) with targets (1 - ε)·onehot + ε/K."""
    return F.cross_entropy(scores.float(), labels, label_smoothing=smoothing)


class CenterLoss(nn.Module):
    """Mean squared distance of features from the learned centers of their identities (Wen et al. 2016)."""

    def __init__(self, num_class: int, dim: int):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(num_class, dim))

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """features (B, D), labels (B,) → the mean over the batch."""
        return (features.float() - self.centers[labels]).square().sum(dim=1).mean()


def make_center_losses(cfg: CfgNode, num_class: int, widths: Sequence[int]) -> nn.ModuleList:
    """A center loss per pair, for features of these widths; empty where MODEL.METRIC_LOSS_TYPE names none."""
    has_centers = "center" in cfg.MODEL.METRIC_LOSS_TYPE
    return nn.ModuleList(CenterLoss(num_class, width) for width in (widths if has_centers else ()))


def total_loss(cfg: CfgNode, outputs: Sequence[torch.Tensor], labels: torch.Tensor, pair_weights: Sequence[float],
               center_losses: Sequence[CenterLoss] = ()) -> torch.Tensor:
    """The weighted sum over the pairs of a training forward: outputs (scores, feature, scores, feature, …[, auxiliary loss]).

    Without MODEL.METRIC_LOSS_TYPE triplet there is no triplet loss, nor with DATALOADER.SAMPLER softmax, whose batches need
    not hold two samples of an identity.
    """
    has_triplets = "triplet" in cfg.MODEL.METRIC_LOSS_TYPE and cfg.DATALOADER.SAMPLER != "softmax"
    margin = None if cfg.MODEL.NO_MARGIN else cfg.SOLVER.MARGIN
    smoothing = LABEL_SMOOTHING if cfg.MODEL.IF_LABELSMOOTH == "on" else 0.0
    *outputs, auxiliary = outputs if len(outputs) % 2 else (*outputs, 0)
    loss = torch.zeros((), device=labels.device) + auxiliary
    for index, (scores, features, weight) in enumerate(zip(outputs[::2], outputs[1::2], pair_weights, strict=True)):
        pair = cfg.MODEL.ID_LOSS_WEIGHT * identity_loss(scores, labels, smoothing)
        if has_triplets:
            pair = pair + cfg.MODEL.TRIPLET_LOSS_WEIGHT * batch_hard_triplet_loss(features, labels, margin)
        if center_losses:
            pair = pair + cfg.SOLVER.CENTER_LOSS_WEIGHT * center_losses[index](features, labels)
        loss = loss + weight * pair
    return loss
