"""Peers of slimming as scores in its harness, such as MODEL.SLIM_SCORE demo_sdtps.studies.peers:EViT (slimming_peers.yml).

Each drops and merges as its paper says, between two blocks in place of inside one; what training adds there, such as a second
loss or learned rates, is left out. Used with MODEL.SLIM_SHARED False: none of them knows of other modalities.
"""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.slimming import remaining_patches, sum_of_present
from demo_sdtps.modeling.tokens import ByModality, Tokens
from demo_sdtps.runtime.errors import UserError

INFORMATION, SIZE = 1 / 20, 1 / 40
"""Exponents of MCTF's criteria beside that of similarity, 1 (its section 4)."""


def mean_attention(attention: torch.Tensor) -> torch.Tensor:
    """Mean over the heads of attention weights (B, heads, N) → (B, N) float32, without gradient."""
    return attention.detach().float().mean(dim=1)


def directions(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens (B, n, C) of length 1, float32, without gradient."""
    return F.normalize(tokens.detach().float(), dim=-1)


def ranks(score: torch.Tensor) -> torch.Tensor:
    """score (B, N) → (B, N) int64: 0 for the highest; of equal ones the first is the higher."""
    return score.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


def merge_into(tokens: Tokens, slimmed: Tokens, decision: torch.Tensor, goal: torch.Tensor, weights: torch.Tensor) -> Tokens:
    """`slimmed` with the dropped patches merged into kept ones: patch i of n becomes a part of patch goal[i], (B, n) int64,
    which for a kept one is i. The means have `weights` (B, n); a patch of weight 0 is pruned. There is no extra token."""
    count, left = goal.shape[1], slimmed.positions.shape[1]  # type: ignore[union-attr]  # a stage sets the positions
    slot = ((decision > 0).cumsum(dim=1) - 1).gather(1, goal)  # place of the goal among the kept
    sizes = torch.ones_like(weights) if tokens.sizes is None else tokens.sizes[:, -count:]
    with torch.autocast(weights.device.type, enabled=False):
        # Matrix products are deterministic on every device, which a scatter that adds is not.
        parts = (slot.unsqueeze(1) == torch.arange(left, device=slot.device).unsqueeze(-1)) & (weights > 0).unsqueeze(1)
        shares = parts * weights.unsqueeze(1)
        patches = shares @ tokens.patches(count).float() / shares.sum(dim=-1, keepdim=True)
        merged = (parts * sizes.unsqueeze(1)).sum(dim=-1)
    values = torch.cat([slimmed.values[:, :-left], patches.to(slimmed.values.dtype)], dim=1)
    return replace(slimmed, values=values, sizes=F.pad(merged, (values.shape[1] - left, 0), value=1.0))


class EViT(Score):
    """Attention of the class token, mean over the heads (Liang et al., ICLR 2022); the sum of the dropped patches, weighted by
    it, is an extra token, which no later stage drops; the weights carry no gradient."""

    needs_attention = True

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return mean_attention(context.attention[context.modality])

    def merge(self, tokens: Tokens, slimmed: Tokens, score: torch.Tensor, decision: torch.Tensor, context: Context) -> Tokens:
        with torch.autocast(score.device.type, enabled=False):
            weights = (score * (decision <= 0)).unsqueeze(1)
            extra = (weights @ tokens.patches(score.shape[1]).float()).to(slimmed.values.dtype)
        return replace(slimmed, values=torch.cat([slimmed.values, extra], dim=1), extra=slimmed.extra + 1)


class DiffRate(EViT):
    """DiffRate (Chen et al., ICCV 2023) at fixed rates: of the patches to drop, in the order of the class token's attention,
    the worse half is pruned, and each of the better half becomes part of the kept patch that is most similar to it."""

    needs_sizes = True

    def merge(self, tokens: Tokens, slimmed: Tokens, score: torch.Tensor, decision: torch.Tensor, context: Context) -> Tokens:
        kept, count = decision > 0, score.shape[1]
        left = slimmed.positions.shape[1]  # type: ignore[union-attr]  # a stage sets the positions
        with torch.autocast(score.device.type, enabled=False):
            unit = directions(tokens.patches(count))
            nearest = (unit @ unit.transpose(1, 2)).masked_fill(~kept.unsqueeze(1), -torch.inf).max(dim=-1).indices
        goal = torch.where(kept, torch.arange(count, device=kept.device), nearest)
        sizes = torch.ones_like(score) if tokens.sizes is None else tokens.sizes[:, -count:]
        last = count - (count - left) // 2 - 1  # place of the last one that is not pruned
        return merge_into(tokens, slimmed, decision, goal, sizes * (ranks(score) <= last))


class Matching(Score):
    """Base of the peers that merge pairs across two sets A and B, every second patch from the first on in A.

    The score of a kept patch is 0, that of another tells which one it becomes part of: -1 - goal.
    """

    needs_sizes = keeps_own = True

    def __init__(self, width: int, grid: tuple[int, int], keep: Sequence[float] = (), **settings: object):
        super().__init__(width, grid, **settings)
        if min(keep, default=1.0) < 0.5:
            raise UserError(f"MODEL.SLIM_KEEP is {list(keep)}, but {type(self).__name__} can merge at most half of the "
                            "patches at a block; keep 0.5 or more, and drop more by more MODEL.SLIM_BLOCKS.")
        counts = remaining_patches(grid[0] * grid[1], keep)
        self.left = dict(zip((grid[0] * grid[1], *counts), counts, strict=False))  # patches after a stage by those before

    @abstractmethod
    def goals(self, drop: int, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        """tokens (B, n, C) of `context.modality` → (B, n) int64: the patch that each becomes part of, itself for all but
        `drop`."""

    def weights(self, tokens: Tokens, context: Context) -> torch.Tensor:
        """(B, n): weight of each patch of all modalities in the means."""
        return torch.cat(list(context.sizes.values()))

    @torch.no_grad()
    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        count = tokens.shape[1]
        with torch.autocast(tokens.device.type, enabled=False):
            goal = self.goals(count - self.left[int(count)], tokens, context)
        own = torch.arange(count, device=goal.device)
        return torch.where(goal == own, 0, -1 - goal).float()

    def merge(self, tokens: Tokens, slimmed: Tokens, score: torch.Tensor, decision: torch.Tensor, context: Context) -> Tokens:
        own = torch.arange(score.shape[1], device=score.device)
        goal = torch.where(score <= -1, -1 - score.long(), own)
        return merge_into(tokens, slimmed, decision, goal, self.weights(tokens, context))


class ToMe(Matching):
    """Token merging (Bolya et al., ICLR 2023): those of A whose keys are nearest to one of B become part of it, by means
    weighted with the number of patches that each stands for."""

    needs_keys = True

    def goals(self, drop: int, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        unit = directions(context.keys[context.modality])
        closest, partner = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)).max(dim=-1)
        goal = torch.arange(tokens.shape[1], device=tokens.device).repeat(tokens.shape[0], 1)
        source = closest.argsort(dim=1, descending=True, stable=True)[:, :drop]
        return goal.scatter(1, 2 * source, 2 * partner.gather(1, source) + 1)


class MCTF(Matching):
    """Multi-criteria token fusion (Lee et al., CVPR 2024): pairs by similarity, little attention from all tokens in the next
    block, and small size; half of those to drop from A into B, the others from B into what is left of A. The means are weighted
    by attention and size."""

    needs_attention = True
    attention_queries = slice(None)

    def goals(self, drop: int, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        unit = directions(tokens)
        seen, sizes = mean_attention(context.attention[context.modality]), context.sizes[context.modality]
        cost = seen ** INFORMATION * sizes ** SIZE
        alike = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2) + 1) / 2
        weight = alike / (cost[:, ::2, None] * cost[:, None, 1::2])
        goal = torch.arange(tokens.shape[1], device=tokens.device).repeat(tokens.shape[0], 1)
        best, partner = weight.max(dim=2)
        source = best.argsort(dim=1, descending=True, stable=True)[:, :drop // 2]
        goal = goal.scatter(1, 2 * source, 2 * partner.gather(1, source) + 1)
        gone = torch.zeros_like(best).scatter(1, source, 1.0) > 0
        best, partner = weight.masked_fill(gone.unsqueeze(2), -torch.inf).max(dim=1)
        source = best.argsort(dim=1, descending=True, stable=True)[:, :drop - drop // 2]
        goal = goal.scatter(1, 2 * source + 1, 2 * partner.gather(1, source))
        return goal.gather(1, goal)  # from A by way of B to A

    def weights(self, tokens: Tokens, context: Context) -> torch.Tensor:
        return super().weights(tokens, context) * torch.cat([mean_attention(seen) for seen in context.attention.values()])


def haar_energy(images: torch.Tensor) -> torch.Tensor:
    """Squared high-frequency coefficients of a Haar wavelet transform of one level, summed over bands and channels: images
    (B, C, H, W) → (B, 1, H, W) float32, at each pixel that of its block of 2×2. Of odd sides the last pixels are repeated."""
    height, width = images.shape[-2:]
    even = F.pad(images.float(), (0, width % 2, 0, height % 2), mode="replicate")
    a, b, c, d = (even[..., row::2, column::2] for row in range(2) for column in range(2))
    bands = torch.cat([a - b + c - d, a + b - c - d, a - b - c + d], dim=1) / 2
    return F.interpolate((bands * bands).sum(dim=1, keepdim=True), scale_factor=2.0)[..., :height, :width]


class Editor(Score):
    """EDITOR (Zhang et al., CVPR 2024): the better of a patch's ranks by the attention of its class token (`mean_attention`)
    and by the energy of the images (`haar_energy`, mean over the patch, summed over the modalities that are not missing). A
    number of patches that is fixed is then the union of equally long tops of both; of two equal ranks that by attention comes
    first."""

    needs_attention = True

    def scores(self, context: Context) -> ByModality:
        energies = {modality: F.avg_pool2d(haar_energy(context.images[modality]), context.patch_size,
                                           context.patch_stride).flatten(1) for modality in context.tokens}
        strength = sum_of_present(energies, context.missing)
        found = {}
        for modality, attention in context.attention.items():
            own = ranks(strength.gather(1, context.positions_of(modality)))
            found[modality] = -torch.minimum(2 * ranks(mean_attention(attention)), 2 * own + 1).float()
        return found

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.scores(context)[context.modality]
