"""Losses of image-text matching: a ranking loss on the similarities, and one on the share of kept patches (docs/seps.md)."""
from collections.abc import Sequence

import torch
from torch import nn


class ContrastiveLoss(nn.Module):
    """Hinge ranking loss of matching pairs, those on the diagonal, against the others of their row and column.

    All others count, or with `max_violation` the hardest of each row and column (VSE++, Faghri et al. 2018).
    """

    def __init__(self, margin: float = 0.2, max_violation: bool = False):
        super().__init__()
        self.margin, self.max_violation = margin, max_violation

    def forward(self, scores: torch.Tensor, img_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Similarities (B, B) of images and captions → the sum over the batch; pairs of equal img_ids (B,) do not count.

        Raises `ValueError` for other shapes.
        """
        count = len(scores)
        if scores.shape != (count, count) or (img_ids is not None and img_ids.shape != (count,)):
            ids = "" if img_ids is None else f" and img_ids {tuple(img_ids.shape)}"
            raise ValueError(f"scores {tuple(scores.shape)}{ids} must be (B, B) and (B,): every image with its own caption.")
        matching = scores.diagonal()
        same = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        if img_ids is not None:
            same = same | (img_ids[:, None] == img_ids[None, :])
        total = torch.zeros((), dtype=scores.dtype, device=scores.device)
        for own, dim in ((matching[:, None], 1), (matching[None, :], 0)):
            cost = (self.margin + scores - own).clamp_min(0).masked_fill(same, 0.0)
            total = total + (cost.amax(dim=dim) if self.max_violation else cost).sum()
        return total


class RatioLoss(nn.Module):
    """Squared distance of the share of kept patches from a target.

    With a fixed number of kept patches that share is a constant, and the loss steers nothing: not with Gumbel's masks
    either, whose gradient is that of a softmax, which sums to 1 whatever the scores are.
    """

    def __init__(self, target_ratio: float = 0.5, lambda_sparse: float = 1.0, lambda_dense: float = 1.0):
        super().__init__()
        self.target_ratio, self.lambdas = target_ratio, (lambda_sparse, lambda_dense)

    def forward(self, score_mask: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
        """One mask of any shape, or those of the sparse and, where there is one, the dense captions → a number."""
        if isinstance(score_mask, torch.Tensor):
            return (score_mask.mean() - self.target_ratio).square()
        return sum(weight * (mask.mean() - self.target_ratio).square()
                   for weight, mask in zip(self.lambdas, score_mask, strict=False))  # there may be no dense mask


class SEPSLoss(nn.Module):
    """The loss of SEPS: alignment plus `ratio_weight` times the ratio loss."""

    def __init__(self, margin: float = 0.2, target_ratio: float = 0.5, ratio_weight: float = 2.0, max_violation: bool = False,
                 lambda_sparse: float = 1.0, lambda_dense: float = 1.0):
        super().__init__()
        self.align = ContrastiveLoss(margin, max_violation)
        self.ratio = RatioLoss(target_ratio, lambda_sparse, lambda_dense)
        self.ratio_weight = ratio_weight

    def set_max_violation(self, max_violation: bool) -> None:
        """Whether the hardest negatives alone count, from the next batch on."""
        self.align.max_violation = max_violation

    def forward(self, similarity_matrix: torch.Tensor, score_mask: torch.Tensor | Sequence[torch.Tensor],
                img_ids: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Similarities (B, B), masks as the network returns them, image ids (B,) → total, alignment and ratio loss."""
        align, ratio = self.align(similarity_matrix, img_ids), self.ratio(score_mask)
        return align + self.ratio_weight * ratio, align, ratio
