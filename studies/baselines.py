"""Baselines of slimming as stages in its harness, such as MODEL.SLIM_SCORE studies.baselines:EViT (slimming.yml).

Each drops and merges as its paper says, between two blocks in place of inside one; a second loss in training is left out. None
of them knows of other modalities, so that every modality keeps its own patches, as with MODEL.SLIM_SHARED False.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from demo_sdtps.modeling.sdtps import gather_tokens, select
from demo_sdtps.runtime.errors import UserError
from demo_sdtps.runtime.files import read_json
from studies.attention import (
    CLASS_TOKEN,
    attention_weights,
    check_attention,
    keys,
)
from vit_slim.stage import (
    Slimming,
    Step,
    append_token,
    keep_tokens,
    make_context,
    make_record,
)
from vit_slim.state import State

RATES = Path(__file__).with_name("diffrate.json")
"""Those that `DiffRate` reads."""


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

    def attention(self, queries: slice = CLASS_TOKEN) -> torch.Tensor:
        """Attention of the next block to each patch, mean over queries and heads (B, n) float32, without gradient."""
        check_attention(
            self.block, "MODEL.SLIM_SCORE is a baseline", "choose another score or backbone"
        )
        sizes = getattr(self.state, "sizes", None)
        bias = None if sizes is None else sizes.log()[:, None, None, :]
        weights = attention_weights(self.block, self.values, queries, self.rope, bias)
        return weights.mean(dim=2)[..., self.places].mean(dim=1)

    def keys(self) -> torch.Tensor:
        """Keys of the next block, mean over its heads (B, n, D)."""
        return keys(self.block, self.values).mean(dim=1)[:, self.places]


class Baseline(Slimming):
    """A subclass says which patches are kept, and what becomes of the others."""

    def forward(
        self,
        number: int,
        values: torch.Tensor,
        state: State,
        block: Any,
        rope: torch.Tensor | None = None,
        **known: torch.Tensor | None,
    ) -> Step:
        keep = self.counts(math.prod(state.grid))[number]
        rows, context = Rows(values, state, keep, block, rope), make_context(values, state)
        score = self.rank(rows)
        if keep < state.count:
            kept, decision = select(score, keep)
            values, state = keep_tokens(values, state, kept.sort(dim=1).values)
            if self.merge:
                values, state = self.merge_dropped(rows, values, state, score, decision)
        return Step(values, state, make_record(context, score, state.places(values)), None)

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
        return append_token(values, state, token)


class ToMe(Baseline):
    """Token merging (Bolya et al., ICLR 2023): every second patch from the first on is in a set A, the others in B; those of A
    whose keys are nearest to one of B become part of it, by means weighted with the number of patches that each stands for.

    A patch of B has the score 0, one of A a lower one, the lower the nearer it is to a patch of B.
    """

    def __init__(self, *settings: Any):
        super().__init__(*settings)
        if min(self.keep, default=1.0) < 0.5:
            raise UserError(
                f"MODEL.SLIM_KEEP is {list(self.keep)}, but ToMe can merge at most half of the patches at a block; keep "
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
        return merge_into(rows, values, state, goal, decision, rows.sizes)


@torch.no_grad()
def nearest_in_b(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys (B, N, D) of patches, every second one from the first on in A, the others in B → the cosine similarity of each of A
    with the nearest of B, and the place of that one among all, (B, ⌈N / 2⌉)."""
    with torch.autocast(keys.device.type, enabled=False):
        unit = F.normalize(keys.float(), dim=-1)
        similarity, partner = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)).max(dim=-1)
    return similarity, 2 * partner + 1


class MCTF(Baseline):
    """Multi-criteria token fusion (Lee et al., CVPR 2024): of the sets A and B of `ToMe`, half of the dropped patches are those
    of A that are drawn most to one of B (`fusion_goals`), the others those of B that are drawn most to one that is left in A.
    Means are weighted by attention and number of patches. The attention is that of the block after, before the fusion."""

    def rank(self, rows: Rows) -> torch.Tensor:
        goal, _ = self.goals(rows)
        return -(goal != own_places(goal)).float()

    def goals(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """`fusion_goals` (B, n), and the attention (B, n)."""
        attention = rows.attention(slice(None))
        dropped = rows.state.count - rows.keep
        return fusion_goals(rows.patches, attention, rows.sizes, dropped), attention

    def merge_dropped(
        self,
        rows: Rows,
        values: torch.Tensor,
        state: State,
        score: torch.Tensor,
        decision: torch.Tensor,
    ) -> tuple[torch.Tensor, State]:
        goal, attention = self.goals(rows)
        return merge_into(rows, values, state, goal, decision, rows.sizes * attention)


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


class DiffRate(Baseline):
    """DiffRate (Chen et al., ICCV 2023): attention of the class token; the lowest are pruned, the others of the dropped become
    part of the kept patch that is most similar, by plain means. How many are kept and how many pruned was learned beforehand,
    by `python -m studies.diffrate`: MODEL.SLIM_BLOCKS and SLIM_KEEP are those of its file."""

    def __init__(self, *settings: Any):
        super().__init__(*settings)
        rates = read_json(RATES, dict)
        before = (rates["patches"], *rates["kept"])
        self.unpruned = dict(zip(before, rates["unpruned"], strict=False))

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
        merged = self.unpruned[rows.state.count] - rows.keep
        index = score.masked_fill(decision > 0, -torch.inf).topk(merged).indices
        kept_sizes = rows.sizes.gather(1, decision.topk(rows.keep).indices.sort(dim=1).values)
        dropped = gather_tokens(rows.patches, index), rows.sizes.gather(1, index)
        patches, sizes = merge_into_nearest(
            values[:, -rows.keep :], dropped[0], kept_sizes, dropped[1]
        )
        return with_sizes(values, state, patches, sizes)


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
    rows: Rows,
    values: torch.Tensor,
    state: State,
    goal: torch.Tensor,
    decision: torch.Tensor,
    weights: torch.Tensor,
) -> tuple[torch.Tensor, State]:
    """The kept tokens `values` with means, by `weights` (B, n), of the patches of `rows` that have the same `goal` (B, n), the
    place of a kept patch; their sizes are summed."""
    place = ((decision > 0).cumsum(dim=1) - 1).gather(1, goal)
    with torch.autocast(weights.device.type, enabled=False):
        # Matrix products are deterministic on every device, which a scatter that adds is not.
        is_part = place.unsqueeze(1) == torch.arange(rows.keep, device=place.device).unsqueeze(-1)
        shares, sizes = is_part * weights.unsqueeze(1), (is_part * rows.sizes.unsqueeze(1)).sum(-1)
        patches = shares @ rows.patches.float() / shares.sum(dim=-1, keepdim=True)
    return with_sizes(values, state, patches, sizes)
