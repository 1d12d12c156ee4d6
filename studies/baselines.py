"""Baselines of slimming as scores in its harness, such as MODEL.SLIM_SCORE studies.baselines:EViT (slimming.yml).

Each drops and merges as its paper says, between two blocks in place of inside one; a second loss in training is left out.
Used with MODEL.SLIM_SHARED False: none of them knows of other modalities.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F

from demo_sdtps.modeling.sdtps import gather_tokens
from demo_sdtps.modeling.slimming.scores.base import Context, Score
from demo_sdtps.modeling.slimming.stage import remaining_patches
from demo_sdtps.modeling.slimming.tokens import Tokens
from demo_sdtps.runtime.errors import UserError
from demo_sdtps.runtime.files import read_json

RATES = Path(__file__).with_name("diffrate.json")
"""Those that `DiffRate` reads."""


def mean_attention(attention: torch.Tensor) -> torch.Tensor:
    """Mean over the heads of attention weights (B, heads, N) → (B, N) float32, without gradient."""
    return attention.detach().float().mean(dim=1)


def ranks(score: torch.Tensor) -> torch.Tensor:
    """score (B, N) → (B, N) int64: 0 for the highest; of equal ones the first is the higher."""
    return score.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


class EViT(Score):
    """Attention of the class token, mean over the heads (Liang et al., ICLR 2022); the sum of the dropped patches, weighted by
    it, is an extra token, which no later stage drops; the weights carry no gradient."""

    needs_attention = True

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return mean_attention(context.attention[context.modality])

    def merge(
        self,
        tokens: Tokens,
        slimmed: Tokens,
        score: torch.Tensor,
        decision: torch.Tensor,
        context: Context,
    ) -> Tokens:
        with torch.autocast(score.device.type, enabled=False):
            weights = (score * (decision <= 0)).unsqueeze(1)
            return slimmed.with_extra(weights @ tokens.patches(score.shape[1]).float())


class ToMe(Score):
    """Token merging (Bolya et al., ICLR 2023): every second patch from the first on is in a set A, the others in B; those of A
    whose keys are nearest to one of B become part of it, by means weighted with the number of patches that each stands for.

    A patch of B has the score 0, one of A a lower one, the lower the nearer it is to a patch of B.
    """

    needs_keys = needs_sizes = keeps_own = True

    def __init__(
        self, width: int, grid: tuple[int, int], keep: Sequence[float] = (), **settings: object
    ):
        super().__init__(width, grid, **settings)
        if min(keep, default=1.0) < 0.5:
            raise UserError(
                f"MODEL.SLIM_KEEP is {list(keep)}, but ToMe can merge at most half of the patches at a block; keep "
                "0.5 or more, and drop more by more MODEL.SLIM_BLOCKS."
            )

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        similarity, _ = nearest_in_b(context.keys[context.modality])
        scores = torch.zeros(tokens.shape[:2], device=tokens.device)
        scores[:, ::2] = (ranks(similarity) - similarity.shape[1]).float()
        return scores

    def merge(
        self,
        tokens: Tokens,
        slimmed: Tokens,
        score: torch.Tensor,
        decision: torch.Tensor,
        context: Context,
    ) -> Tokens:
        """`slimmed` with each dropped patch merged into the nearest of B; there is no extra token."""
        sizes = torch.cat(list(context.sizes.values()))
        goal = own_places(score)
        goal[:, ::2] = torch.cat([nearest_in_b(keys)[1] for keys in context.keys.values()])
        return merge_into(
            tokens,
            slimmed,
            torch.where(decision > 0, own_places(score), goal),
            decision,
            sizes,
            sizes,
        )


@torch.no_grad()
def nearest_in_b(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys (B, N, D) of patches, every second one from the first on in A, the others in B → the cosine similarity of each of A
    with the nearest of B, and the place of that one among all, (B, ⌈N / 2⌉)."""
    with torch.autocast(keys.device.type, enabled=False):
        unit = F.normalize(keys.float(), dim=-1)
        similarity, partner = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)).max(dim=-1)
    return similarity, 2 * partner + 1


class MCTF(Score):
    """Multi-criteria token fusion (Lee et al., CVPR 2024): of the sets A and B of `ToMe`, half of the dropped patches are those
    of A that are drawn most to one of B (`fusion_goals`), the others those of B that are drawn most to one that is left in A.
    Means are weighted by attention and number of patches. The attention is that of the block after, before the fusion."""

    needs_attention = needs_sizes = keeps_own = True
    attention_of = slice(None)

    def __init__(
        self, width: int, grid: tuple[int, int], keep: Sequence[float] = (), **settings: object
    ):
        super().__init__(width, grid, **settings)
        counts = (math.prod(grid), *remaining_patches(math.prod(grid), keep))
        self.left = dict(pairwise(counts))  # by the number of patches before

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        goal = self.goals(context.modality, context)
        return -(goal != own_places(goal)).float()

    def goals(self, modality: str, context: Context) -> torch.Tensor:
        tokens, sizes = context.tokens[modality], context.sizes[modality]
        attention = mean_attention(context.attention[modality])
        patches = int(tokens.shape[1])  # a number in a trace too
        dropped = patches - self.left[patches]
        return fusion_goals(tokens, attention, sizes, dropped)

    def merge(
        self,
        tokens: Tokens,
        slimmed: Tokens,
        score: torch.Tensor,
        decision: torch.Tensor,
        context: Context,
    ) -> Tokens:
        goal = torch.cat([self.goals(modality, context) for modality in context.tokens])
        sizes = torch.cat(list(context.sizes.values()))
        weights = sizes * torch.cat([mean_attention(part) for part in context.attention.values()])
        return merge_into(tokens, slimmed, goal, decision, weights, sizes)


@torch.no_grad()
def fusion_goals(
    tokens: torch.Tensor, attention: torch.Tensor, sizes: torch.Tensor, dropped: int
) -> torch.Tensor:
    """The place of the patch that each becomes part of, (B, n) int64, when MCTF drops `dropped`: of tokens (B, n, C), attention
    and sizes (B, n). Two patches are drawn to each other by similarity, little attention and small size."""
    with torch.autocast(tokens.device.type, enabled=False):
        unit = F.normalize(tokens.float(), dim=-1)
        similarity = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2) + 1) / 2
    weight = attention.pow(-1 / 20) * sizes.pow(-1 / 40)
    attraction = similarity * weight[:, ::2, None] * weight[:, None, 1::2]
    goal, first = own_places(attention), dropped // 2
    best, partner = attraction.max(dim=2)
    is_first = ranks(best) < first
    goal[:, ::2] = torch.where(is_first, 2 * partner + 1, goal[:, ::2])
    best, partner = attraction.masked_fill(is_first.unsqueeze(2), -torch.inf).max(dim=1)
    is_second = ranks(best) < dropped - first
    goal[:, 1::2] = torch.where(is_second, 2 * partner, goal[:, 1::2])
    return goal.gather(1, goal)  # of one that became part of a patch of B that is dropped then


class DiffRate(Score):
    """DiffRate (Chen et al., ICCV 2023): attention of the class token; the lowest are pruned, the others of the dropped become
    part of the kept patch that is most similar, by plain means. How many are kept and how many pruned was learned beforehand,
    by `python -m studies.diffrate`: MODEL.SLIM_BLOCKS and SLIM_KEEP are those of its file."""

    needs_attention = needs_sizes = keeps_own = True

    def __init__(self, width: int, grid: tuple[int, int], **settings: object):
        super().__init__(width, grid, **settings)
        rates = read_json(RATES)
        before = (rates["patches"], *rates["kept"])
        self.unpruned = dict(zip(before, rates["unpruned"], strict=False))

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return mean_attention(context.attention[context.modality])

    def merge(
        self,
        tokens: Tokens,
        slimmed: Tokens,
        score: torch.Tensor,
        decision: torch.Tensor,
        context: Context,
    ) -> Tokens:
        left = int(slimmed.positions.shape[1])  # type: ignore[union-attr]  # a stage sets the positions
        merged = self.unpruned[int(score.shape[1])] - left
        index = score.masked_fill(decision > 0, -torch.inf).topk(merged).indices
        sizes = torch.cat(list(context.sizes.values()))
        kept_sizes = sizes.gather(1, decision.topk(left).indices.sort(dim=1).values)
        patches, kept = tokens.patches(score.shape[1]), slimmed.values[:, -left:]
        values, sizes = merge_into_nearest(
            kept, gather_tokens(patches, index), kept_sizes, sizes.gather(1, index)
        )
        values = torch.cat([slimmed.values[:, :-left], values.to(kept.dtype)], dim=1)
        sizes = F.pad(sizes, (values.shape[1] - left, 0), value=1.0)
        return replace(slimmed, values=values, sizes=sizes)


def merge_into_nearest(
    kept: torch.Tensor, merged: torch.Tensor, kept_sizes: torch.Tensor, merged_sizes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept patches (B, k, C) with each of `merged` (B, m, C) in the mean of the one of largest cosine → (B, k, C) float32, and
    the sizes (B, k): a merged patch adds its own (B, m) times the cosine."""
    with torch.autocast(kept.device.type, enabled=False):
        kept, merged = kept.float(), merged.float()
        units = [F.normalize(tokens.detach(), dim=-1) for tokens in (merged, kept)]
        cosine, goal = (units[0] @ units[1].transpose(1, 2)).max(dim=-1)
        is_part = goal.unsqueeze(1) == torch.arange(kept.shape[1], device=goal.device).unsqueeze(-1)
        shares = is_part.float()
        means = (kept + shares @ merged) / (1 + shares.sum(dim=-1, keepdim=True))
    added = merged_sizes * cosine.clamp(min=0)
    return means, kept_sizes + (shares * added.unsqueeze(1)).sum(dim=-1)


def own_places(rows: torch.Tensor) -> torch.Tensor:
    """(B, n) int64: the place of each of n patches, for rows (B, n)."""
    return torch.arange(rows.shape[1], device=rows.device).repeat(rows.shape[0], 1)


def merge_into(
    tokens: Tokens,
    slimmed: Tokens,
    goal: torch.Tensor,
    decision: torch.Tensor,
    weights: torch.Tensor,
    sizes: torch.Tensor,
) -> Tokens:
    """`slimmed` with means, by `weights` (B, n), of the patches that have the same `goal`, the place of a kept patch, (B, n);
    their `sizes` (B, n) are summed."""
    kept = decision > 0
    left = int(slimmed.positions.shape[1])  # type: ignore[union-attr]  # a stage sets the positions
    place = (kept.cumsum(dim=1) - 1).gather(1, goal)
    with torch.autocast(weights.device.type, enabled=False):
        # Matrix products are deterministic on every device, which a scatter that adds is not.
        is_part = place.unsqueeze(1) == torch.arange(left, device=place.device).unsqueeze(-1)
        shares, merged = is_part * weights.unsqueeze(1), (is_part * sizes.unsqueeze(1)).sum(dim=-1)
        patches = shares @ tokens.patches(goal.shape[1]).float() / shares.sum(dim=-1, keepdim=True)
    values = torch.cat([slimmed.values[:, :-left], patches.to(slimmed.values.dtype)], dim=1)
    sizes_of_all = F.pad(merged, (values.shape[1] - left, 0), value=1.0)
    return replace(slimmed, values=values, sizes=sizes_of_all)
