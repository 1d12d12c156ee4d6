"""Identity, triplet, center and distillation loss of every head, and their sum (docs/method.md).

It needs torch alone, so that a training of any model can have `distill_loss` and `feature_distill_loss` beside `slim`
(docs/slim.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

LABEL_SMOOTHING = 0.1


def distill_loss(
    logits: torch.Tensor, teacher: torch.Tensor, temperature: float = 4.0
) -> torch.Tensor:
    """T² · KL(softmax(teacher / T) ‖ softmax(logits / T)), the mean over the batch: follow a trained model's logits.

    `logits` and `teacher` (…, K) are of the same images and classes, `temperature` is T; → a scalar, computed in float32, with
    gradients to `logits` alone, which T² keeps as large as those of the cross-entropy (Hinton et al., arXiv 1503.02531,
    section 2). Classes at -inf are left out. Raises `UserError` where the shapes differ or T is not above 0.
    """
    check_shapes("logits", logits, teacher)
    if temperature <= 0:
        raise UserError(f"The temperature of distillation is {temperature}; it must be above 0.")
    student, target = (
        (each.float() / temperature).log_softmax(-1) for each in (logits, teacher.detach())
    )
    terms = F.kl_div(student, target, reduction="none", log_target=True)
    return temperature**2 * terms.masked_fill((student + target).isneginf(), 0).sum(-1).mean()


def feature_distill_loss(features: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Follow a trained model's features: mean 1 - cosine to the teacher's, plus the mean distance of all cosines in the batch.

    `features` and `teacher` (B, D) are of the same images; → a scalar, computed in float32, with gradients to `features` alone
    (docs/method.md). Raises `UserError` where the shapes differ.
    """
    check_shapes("features", features, teacher)
    unit = F.normalize(features.float(), dim=1)
    target = F.normalize(teacher.detach().float(), dim=1)
    with torch.autocast(features.device.type, enabled=False):
        relations = (unit @ unit.T - target @ target.T).abs().mean()
    return 1 - (unit * target).sum(dim=1).mean() + relations


def check_shapes(what: str, ours: torch.Tensor, teacher: torch.Tensor) -> None:
    """Raise `UserError` where a model's logits or features and the teacher's have other shapes."""
    if ours.shape != teacher.shape:
        raise UserError(
            f"The {what} are {tuple(ours.shape)} and the teacher's {tuple(teacher.shape)}; give those of the same images and "
            "as wide."
        )


def euclidean_distance(features: torch.Tensor) -> torch.Tensor:
    """All pairs of features (B, D) → (B, B); squares are clamped at 1e-12 so that the root has a derivative."""
    square = features.square().sum(1)
    sums = square[:, None] + square
    return torch.addmm(sums, features, features.T, alpha=-2).clamp(min=1e-12).sqrt()


def batch_hard_triplet_loss(
    features: torch.Tensor, labels: torch.Tensor, margin: float | None = None
) -> torch.Tensor:
    """Mean over the batch of the loss of the farthest positive and nearest negative (Hermans et al. 2017).

    features (B, D), not normalised; labels (B,). Soft margin log(1 + exp(d_ap - d_an)) where `margin` is None.
    """
    with torch.autocast(features.device.type, enabled=False):
        distance = euclidean_distance(features.float())
    same = labels[:, None] == labels
    hardest_positive = distance.masked_fill(~same, -torch.inf).amax(dim=1)
    hardest_negative = distance.masked_fill(same, torch.inf).amin(dim=1)
    gap = hardest_positive - hardest_negative
    return (F.softplus(gap) if margin is None else F.relu(gap + margin)).mean()


def identity_loss(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float = LABEL_SMOOTHING
) -> torch.Tensor:
    """Cross-entropy of logits (B, K) with targets (1 - ε)·onehot + ε/K."""
    logits, share = logits.float(), smoothing / logits.shape[1]
    # Given as shares: of cross_entropy's own smoothing, torch makes three times as many operators.
    targets = torch.full_like(logits, share).scatter(1, labels[:, None], 1 - smoothing + share)
    return F.cross_entropy(logits, targets)


class CenterLoss(nn.Module):
    """Mean squared distance of features from the learned centers of their identities (Wen et al. 2016)."""

    def __init__(self, num_class: int, dim: int):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(num_class, dim))

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """features (B, D), labels (B,) → mean over the batch."""
        return (features.float() - self.centers[labels]).square().sum(1).mean()


def make_center_losses(cfg: CfgNode, num_class: int, widths: Sequence[int]) -> nn.ModuleList:
    """One center loss per head, for features of these widths; empty where MODEL.METRIC_LOSS_TYPE names none."""
    has_centers = "center" in cfg.MODEL.METRIC_LOSS_TYPE
    return nn.ModuleList(CenterLoss(num_class, width) for width in (widths if has_centers else ()))


class TrainingOutput(NamedTuple):
    """What a training forward returns: by head, enhanced ones first, and the mean loss of slimming's scores."""

    logits: dict[str, torch.Tensor]  # (B, K)
    features: dict[str, torch.Tensor]  # (B, D), before the BatchNorm; float32
    auxiliary: torch.Tensor | None  # (1,); None where no score has a loss


class Target(NamedTuple):
    """A teacher's logits (B, K) and features (B, D) of a head."""

    logits: torch.Tensor
    features: torch.Tensor


class HeadOutput(NamedTuple):
    """Input of a loss: a head's logits (B, K), features (B, D), labels (B,), and its center loss and teacher, if any."""

    logits: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor
    center_loss: nn.Module | None
    teacher: Target | None


def _identity(cfg: CfgNode, head: HeadOutput) -> torch.Tensor:
    smoothing = LABEL_SMOOTHING if cfg.MODEL.IF_LABELSMOOTH == "on" else 0.0
    return cfg.MODEL.ID_LOSS_WEIGHT * identity_loss(head.logits, head.labels, smoothing)


def _triplet(cfg: CfgNode, head: HeadOutput) -> torch.Tensor | None:
    # Batches of DATALOADER.SAMPLER softmax need not hold two samples of an identity.
    if "triplet" not in cfg.MODEL.METRIC_LOSS_TYPE or cfg.DATALOADER.SAMPLER == "softmax":
        return None
    margin = None if cfg.MODEL.NO_MARGIN else cfg.SOLVER.MARGIN
    loss = batch_hard_triplet_loss(head.features, head.labels, margin)
    return cfg.MODEL.TRIPLET_LOSS_WEIGHT * loss


def _center(cfg: CfgNode, head: HeadOutput) -> torch.Tensor | None:
    if head.center_loss is None:
        return None
    return cfg.SOLVER.CENTER_LOSS_WEIGHT * head.center_loss(head.features, head.labels)


def _distill(cfg: CfgNode, head: HeadOutput) -> torch.Tensor | None:
    if head.teacher is None:
        return None
    loss = distill_loss(head.logits, head.teacher.logits, cfg.SOLVER.DISTILL_TEMPERATURE)
    return cfg.SOLVER.DISTILL_WEIGHT * loss


def _distill_features(cfg: CfgNode, head: HeadOutput) -> torch.Tensor | None:
    if head.teacher is None or head.teacher.features.shape != head.features.shape:
        return None  # a teacher of another width has its logits to follow
    loss = feature_distill_loss(head.features, head.teacher.features)
    return cfg.SOLVER.DISTILL_FEATURES * loss


LOSSES: dict[str, Callable[[CfgNode, HeadOutput], torch.Tensor | None]] = {
    "id": _identity,
    "triplet": _triplet,
    "center": _center,
    "distill": _distill,
    "distill_features": _distill_features,
}
"""Losses of a head by name, each with its weight in the configuration; None where the configuration has it off."""


def total_loss(
    cfg: CfgNode,
    output: TrainingOutput,
    labels: torch.Tensor,
    head_weights: Mapping[str, float],
    center_losses: Iterable[nn.Module] = (),
    teacher: Mapping[str, Target] = {},
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss to minimise, and its parts without gradient, which sum to it: "<loss>/<head>" and "auxiliary" → scalar.

    labels (B,); head_weights: weights of the heads' losses by the heads' names; center_losses: one per head, or none; teacher:
    its output by the heads' names.
    """
    terms = {}
    total = torch.zeros((), device=labels.device)
    if output.auxiliary is not None:  # (processes,)
        total = output.auxiliary.mean()
        terms["auxiliary"] = total.detach()
    centers: Sequence[nn.Module | None] = list(center_losses) or [None] * len(output.logits)
    for (name, logits), center_loss in zip(output.logits.items(), centers, strict=True):
        weight = head_weights[name]
        head = HeadOutput(logits, output.features[name], labels, center_loss, teacher.get(name))
        values = {kind: loss(cfg, head) for kind, loss in LOSSES.items()}
        losses = {kind: value for kind, value in values.items() if value is not None}
        total = total + weight * reduce(torch.add, losses.values())
        terms |= {f"{kind}/{name}": weight * value.detach() for kind, value in losses.items()}
    return total, terms
