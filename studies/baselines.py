"""Rivals of token pruning as scores with a way of their own through a block, such as MODEL.SLIM_SCORE studies.baselines:EViT.

Each drops and merges as its paper says, between two blocks in place of inside one; a second loss in training is left out. None
of them knows of other modalities, so that every modality keeps its own patches, as with MODEL.SLIM_SHARED False.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F

from demo_sdtps.modeling.sdtps import select
from demo_sdtps.runtime.errors import UserError
from studies.attention import (
    CLASS_TOKEN,
    attention_weights,
    check_attention,
    keys,
)
from vit_slim.stage import Block, Grid, Score, State, Step, keep_tokens


@dataclass(frozen=True)
class SizedState(State):
    """The state of tokens of which each stands for a number of patches, its weight in attention."""

    sizes: torch.Tensor | None = None  # (B, P + n + E)

    def arguments(self, values: torch.Tensor, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Proportional attention (ToMe): a key that stands for s patches weighs s times as much."""
        assert self.sizes is not None
        mask = self.sizes.log().to(values.dtype)[:, None, None, :]
        return super().arguments(values, whole) | {"attn_mask": mask}


@dataclass(frozen=True)
class Rows:
    """Tokens of images of any modality before a stage: B images, n patches, of which `keep` are left."""

    values: torch.Tensor  # (B, L, C)
    state: State
    keep: int
    block: Any  # the next one, of timm's VisionTransformer or Eva
    rope: torch.Tensor | None  # its rotary embedding

    @property
    def places(self) -> slice:
        """Of the patches among the tokens."""
        end = int(self.values.shape[1]) - self.state.extra
        return slice(end - self.state.count, end)

    @property
    def patches(self) -> torch.Tensor:
        """(B, n, C)"""
        return self.values[:, self.places]

    @property
    def sizes(self) -> torch.Tensor:
        """(B, n): the number of patches that each stands for."""
        sizes = getattr(self.state, "sizes", None)
        return (
            torch.ones_like(self.patches[..., 0]).float()
            if sizes is None
            else sizes[:, self.places]
        )

    def attention(self) -> torch.Tensor:
        """Attention of the next block's class token to each patch, mean over the heads (B, n) float32, without gradient."""
        check_attention(
            self.block, "MODEL.SLIM_SCORE is a baseline", "choose another score or backbone"
        )
        sizes = getattr(self.state, "sizes", None)
        bias = None if sizes is None else sizes.log()[:, None, None, :]
        weights = attention_weights(self.block, self.values, CLASS_TOKEN, self.rope, bias)
        return weights.mean(dim=2)[..., self.places].mean(dim=1)

    def keys(self) -> torch.Tensor:
        """Keys of the next block, mean over its heads (B, n, D)."""
        return keys(self.block, self.values).mean(dim=1)[:, self.places]


class Baseline(Score):
    """A method that acts by what the next block computes: `Score.run` with the block. A subclass says which patches are kept,
    and what becomes of the others."""

    def run(self, block: Block, values: torch.Tensor, state: State, keep: int, merge: bool) -> Step:
        rope = state.arguments(values, block.arguments).get("rope")
        rows = Rows(values, state, keep, block.module, rope)
        score = self.rank(rows)
        if keep < state.count:
            kept, decision = select(score, keep)
            values, state = keep_tokens(values, state, kept.sort(dim=1).values)
            if merge:
                values, state = self.merge_dropped(rows, values, state, score, decision)
        return Step(block.run(values, state), state, score, None)

    def rank(self, rows: Rows) -> torch.Tensor:
        """(B, n), the best highest."""
        raise NotImplementedError

    def merge_dropped(
        self,
        rows: Rows,
        values: torch.Tensor,
        state: State,
        score: torch.Tensor,
        decision: torch.Tensor,
    ) -> tuple[torch.Tensor, State]:
        """The kept tokens `values` (B, L', C) with what becomes of the dropped patches of `rows`; `score` and `decision`
        (B, n), 1 for a kept patch and 0 for another."""
        raise NotImplementedError


def with_sizes(
    values: torch.Tensor, state: State, patches: torch.Tensor, sizes: torch.Tensor
) -> tuple[torch.Tensor, State]:
    """Tokens (B, L, C), whose last are the patches, with others (B, n, C) in their place, and their sizes (B, n)."""
    values = torch.cat([values[:, : -patches.shape[1]], patches.to(values.dtype)], dim=1)
    sizes = F.pad(sizes, (values.shape[1] - sizes.shape[1], 0), value=1.0)
    known = {field.name: getattr(state, field.name) for field in fields(State)}
    return values, SizedState(**known, sizes=sizes)


def ranks(score: torch.Tensor) -> torch.Tensor:
    """score (B, N) → (B, N) int64: 0 for the highest; of equal ones the first is the higher."""
    return score.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


class EViT(Baseline):
    """Attention of the class token, mean over the heads (Liang et al., ICLR 2022); the sum of the dropped patches, weighted by
    it, is an extra token, which no later stage drops; the weights carry no gradient."""

    def rank(self, rows: Rows) -> torch.Tensor:
        return rows.attention()

    def merge_dropped(
        self,
        rows: Rows,
        values: torch.Tensor,
        state: State,
        score: torch.Tensor,
        decision: torch.Tensor,
    ) -> tuple[torch.Tensor, State]:
        with torch.autocast(score.device.type, enabled=False):
            weights = (score * (decision <= 0)).unsqueeze(1)
            token = weights @ rows.patches.float()
        values = torch.cat([values, token.to(values.dtype)], dim=1)
        return values, replace(state, extra=state.extra + 1)


class ToMe(Baseline):
    """Token merging (Bolya et al., ICLR 2023): every second patch from the first on is in a set A, the others in B; those of A
    whose keys are nearest to one of B become part of it, by means weighted with the number of patches that each stands for.

    A patch of B has the score 0, one of A a lower one, the lower the nearer it is to a patch of B.
    """

    def __init__(self, width: int, grid: Grid, keep: Sequence[float] = (), **settings: object):
        super().__init__(width, grid, **settings)
        if min(keep, default=1.0) < 0.5:
            raise UserError(
                f"MODEL.SLIM_KEEP is {list(keep)}, but ToMe can merge at most half of the patches at a block; keep "
                "0.5 or more, and drop more by more MODEL.SLIM_BLOCKS."
            )

    def rank(self, rows: Rows) -> torch.Tensor:
        similarity, _ = nearest_in_b(rows.keys())
        scores = torch.zeros_like(rows.patches[..., 0], dtype=torch.float32)
        scores[:, ::2] = (ranks(similarity) - similarity.shape[1]).float()
        return scores

    def merge_dropped(
        self,
        rows: Rows,
        values: torch.Tensor,
        state: State,
        score: torch.Tensor,
        decision: torch.Tensor,
    ) -> tuple[torch.Tensor, State]:
        """Each dropped patch becomes part of the nearest of B; there is no extra token."""
        goal = own_places(score)
        goal[:, ::2] = nearest_in_b(rows.keys())[1]
        goal = torch.where(decision > 0, own_places(score), goal)
        return merge_into(rows, values, state, goal, decision)


@torch.no_grad()
def nearest_in_b(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys (B, N, D) of patches, every second one from the first on in A, the others in B → the cosine similarity of each of A
    with the nearest of B, and the place of that one among all, (B, ⌈N / 2⌉)."""
    with torch.autocast(keys.device.type, enabled=False):
        unit = F.normalize(keys.float(), dim=-1)
        similarity, partner = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)).max(dim=-1)
    return similarity, 2 * partner + 1


def own_places(rows: torch.Tensor) -> torch.Tensor:
    """(B, n) int64: the place of each of n patches, for rows (B, n)."""
    return torch.arange(rows.shape[1], device=rows.device).repeat(rows.shape[0], 1)


def merge_into(
    rows: Rows,
    values: torch.Tensor,
    state: State,
    goal: torch.Tensor,
    decision: torch.Tensor,
) -> tuple[torch.Tensor, State]:
    """The kept tokens `values` with means, weighted by their sizes, of the patches of `rows` that have the same `goal` (B, n),
    the place of a kept patch; their sizes are summed."""
    place = ((decision > 0).cumsum(dim=1) - 1).gather(1, goal)
    with torch.autocast(goal.device.type, enabled=False):
        # Matrix products are deterministic on every device, which a scatter that adds is not.
        is_part = place.unsqueeze(1) == torch.arange(rows.keep, device=place.device).unsqueeze(-1)
        shares = is_part * rows.sizes.unsqueeze(1)
        sizes = shares.sum(dim=-1)
        patches = shares @ rows.patches.float() / sizes.unsqueeze(-1)
    return with_sizes(values, state, patches, sizes)
