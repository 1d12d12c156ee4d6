"""Losses of image-text matching: a ranking loss of the similarities, and a loss of the ratio of kept patches (docs/seps.md)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ContrastiveLoss(nn.Module):
    """Hinge ranking loss of the matching pairs on the diagonal against the negatives of their row and column. Sums all
    negatives, or with `max_violation` the hardest of each row and column (VSE++, Faghri et al. 2018)."""

    def __init__(self, margin: float = 0.2, max_violation: bool = False):
        super().__init__()
        self.margin, self.max_violation = margin, max_violation

    def forward(self, scores: Tensor, img_ids: Tensor | None = None) -> Tensor:
        """Similarities (B, B) of images and captions → sum over the batch; pairs with equal img_ids (B,) are no negatives."""
        matching = scores.diagonal()
        same = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        if img_ids is not None:
            same = same | (img_ids[:, None] == img_ids[None, :])
        total = torch.zeros((), dtype=scores.dtype, device=scores.device)
        for positive, dim in ((matching[:, None], 1), (matching[None, :], 0)):
            cost = (self.margin + scores - positive).clamp_min(0).masked_fill(same, 0.0)
            total = total + (cost.amax(dim=dim) if self.max_violation else cost).sum()
        return total


class RatioLoss(nn.Module):
    """Squared difference of the ratio of kept patches and a target; constant for a fixed number of them (docs/seps.md)."""

    def __init__(
        self, target_ratio: float = 0.5, lambda_sparse: float = 1.0, lambda_dense: float = 1.0
    ):
        super().__init__()
        self.target_ratio, self.lambdas = target_ratio, (lambda_sparse, lambda_dense)

    def forward(self, score_mask: Tensor | Sequence[Tensor]) -> Tensor:
        """One mask of any shape, or those of the sparse and optionally the dense captions → scalar."""
        if isinstance(score_mask, Tensor):
            return (score_mask.mean() - self.target_ratio).square()
        sparse, *dense = (
            weight * (mask.mean() - self.target_ratio).square()
            for weight, mask in zip(self.lambdas, score_mask, strict=False)
        )
        return sparse + dense[0] if dense else sparse


class SEPSLoss(nn.Module):
    """The loss of SEPS: alignment plus `ratio_weight` times the ratio loss."""

    def __init__(
        self,
        margin: float = 0.2,
        target_ratio: float = 0.5,
        ratio_weight: float = 2.0,
        max_violation: bool = False,
        lambda_sparse: float = 1.0,
        lambda_dense: float = 1.0,
    ):
        super().__init__()
        self.align = ContrastiveLoss(margin, max_violation)
        self.ratio = RatioLoss(target_ratio, lambda_sparse, lambda_dense)
        self.ratio_weight = ratio_weight

    def set_max_violation(self, max_violation: bool) -> None:
        """Select the hardest negatives only (True) or all negatives."""
        self.align.max_violation = max_violation

    def forward(
        self,
        similarity_matrix: Tensor,
        score_mask: Tensor | Sequence[Tensor],
        img_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Similarities (B, B), masks of `CrossSparseAggrNet`, image ids (B,) → total, alignment and ratio loss."""
        align, ratio = self.align(similarity_matrix, img_ids), self.ratio(score_mask)
        return align + self.ratio_weight * ratio, align, ratio
