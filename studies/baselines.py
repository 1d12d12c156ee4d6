"""Baselines of slimming as scores in its harness, such as MODEL.SLIM_SCORE studies.baselines:EViT (slimming.yml).

Each drops and merges as its paper says, between two blocks in place of inside one; what training adds there, such as a second
loss or learned rates, is left out. Used with MODEL.SLIM_SHARED False: none of them knows of other modalities.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from demo_sdtps.modeling.slimming.scores.base import Context, Score
from demo_sdtps.modeling.slimming.stage import sum_of_present
from demo_sdtps.modeling.slimming.tokens import ByModality, Tokens
from demo_sdtps.runtime.errors import UserError


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
        count, left = score.shape[1], slimmed.positions.shape[1]  # type: ignore[union-attr]  # a stage sets the positions
        goal = torch.arange(count, device=score.device).repeat(score.shape[0], 1)
        goal[:, ::2] = torch.cat([nearest_in_b(keys)[1] for keys in context.keys.values()])
        # The place among the kept patches of each patch, or of the one that it becomes part of.
        place = (decision > 0).cumsum(dim=1) - 1
        slot = torch.where(decision > 0, place, place.gather(1, goal))
        sizes = torch.cat(list(context.sizes.values())).unsqueeze(1)
        with torch.autocast(score.device.type, enabled=False):
            # Matrix products are deterministic on every device, which a scatter that adds is not.
            slots = torch.arange(left, device=slot.device).unsqueeze(-1)
            shares = (slot.unsqueeze(1) == slots) * sizes
            merged = shares.sum(dim=-1)
            patches = shares @ tokens.patches(count).float() / merged.unsqueeze(-1)
        values = torch.cat([slimmed.values[:, :-left], patches.to(slimmed.values.dtype)], dim=1)
        sizes_of_all = F.pad(merged, (values.shape[1] - left, 0), value=1.0)
        return replace(slimmed, values=values, sizes=sizes_of_all)


@torch.no_grad()
def nearest_in_b(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys (B, N, D) of patches, every second one from the first on in A, the others in B → the cosine similarity of each of A
    with the nearest of B, and the place of that one among all, (B, ⌈N / 2⌉)."""
    with torch.autocast(keys.device.type, enabled=False):
        unit = F.normalize(keys.float(), dim=-1)
        similarity, partner = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)).max(dim=-1)
    return similarity, 2 * partner + 1


def haar_energy(images: torch.Tensor) -> torch.Tensor:
    """Squared high-frequency coefficients of a Haar wavelet transform of one level, summed over bands and channels: images
    (B, C, H, W) → (B, 1, H, W) float32, at each pixel that of its block of 2×2. Of odd sides the last pixels are repeated."""
    height, width = images.shape[-2:]
    even = F.pad(images.float(), (0, width % 2, 0, height % 2), mode="replicate")
    a, b, c, d = (even[..., row::2, column::2] for row in range(2) for column in range(2))
    bands = torch.cat([a - b + c - d, a + b - c - d, a - b - c + d], dim=1) / 2
    return F.interpolate((bands * bands).sum(dim=1, keepdim=True), scale_factor=2.0)[
        ..., :height, :width
    ]


class Editor(Score):
    """EDITOR (Zhang et al., CVPR 2024): the better of a patch's ranks by the attention of its class token (`mean_attention`)
    and by the energy of the images (`haar_energy`, mean over the patch, summed over the modalities that are not missing). A
    number of patches that is fixed is then the union of equally long tops of both; of two equal ranks that by attention comes
    first."""

    needs_attention = True

    def scores(self, context: Context) -> ByModality:
        size, stride = context.patch_size, context.patch_stride
        energies = {
            modality: F.avg_pool2d(haar_energy(context.images[modality]), size, stride).flatten(1)
            for modality in context.tokens
        }
        energy, scores = sum_of_present(energies, context.missing), {}
        for modality, attention in context.attention.items():
            by_energy = ranks(energy.gather(1, context.positions_of(modality)))
            by_attention = ranks(mean_attention(attention))
            scores[modality] = -torch.minimum(2 * by_attention, 2 * by_energy + 1).float()
        return scores
