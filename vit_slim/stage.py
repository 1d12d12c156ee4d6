"""Slimming is token pruning: between two blocks a stage drops patches by a score and merges them (docs/method.md).

A stage is a pure function of tokens and their `State` (`run_stage`); the modalities are stacked along the batch dimension, so
that it is one gather, and the numbers of tokens depend on the settings alone. This project's model calls it in demo.py, any
other Vision Transformer by the hooks of hooks.py.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.modeling.modalities import ByModality, Grid, split_rows
from demo_sdtps.modeling.sdtps import best, gather_tokens, softmax_mean
from demo_sdtps.runtime.errors import UserError
from vit_slim.scores import is_cast, saliency
from vit_slim.scores.base import Context, Score, StageRecord
from vit_slim.state import State

Window = tuple[tuple[int, ...], tuple[int, ...]]
"""Size of a patch and step between patches, (vertical, horizontal) in pixels."""


class Step(NamedTuple):
    """What a stage returns."""

    values: torch.Tensor  # (B, L, C)
    state: State
    record: StageRecord
    loss: torch.Tensor | None  # of the score, a scalar with its weight


def run_stage(
    values: torch.Tensor,
    state: State,
    scorer: Score,
    keep: int,
    merge: bool = True,
    score: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> Step:
    """A stage on the input (B, L, C) of the block after it, which leaves `keep` patches by a score, and merges the others.
    `score` (B, n) is used in place of the scorer's. `positions` (B, keep) are the patches to keep where these are known: blocks
    that are computed again for the backward pass keep what they kept."""
    context, loss = make_context(values, state), None
    if score is None:
        scores = scorer(context)
        loss = scorer.loss(scores, context)
        if state.shared:
            scores = dict.fromkeys(scores, sum_of_present(scores, state.missing))
        score = torch.cat(list(scores.values()))
    remaining, after = values, state
    if keep < state.count:
        if positions is None:
            kept = best(score, keep).sort(dim=1).values  # in the order of the grid
        else:
            kept = torch.searchsorted(state.places(values), positions)
        remaining, after = keep_tokens(values, state, kept)
        if merge:
            # Not by `mean_of_dropped`, which loses dropped patches that are far below the best, as logits can be.
            logits = score.float().scatter(1, kept, -torch.inf).unsqueeze(1)
            extra = softmax_mean(state.patches(values), logits)
            remaining, after = append_token(remaining, after, extra)
    return Step(remaining, after, make_record(context, score, after.places(values)), loss)


def make_context(values: torch.Tensor, state: State) -> Context:
    """What a score reads of tokens (B, L, C)."""
    rows = state.patches(values), values[:, 0], state.places(values)
    tokens, global_feats, positions = (split_rows(each, state.names) for each in rows)
    return Context(tokens, global_feats, state.grid, state.missing, positions, state)


def make_record(context: Context, score: torch.Tensor, kept: torch.Tensor) -> StageRecord:
    """The record of a stage by its score (B, n) and the positions (B, K) that it kept, of all modalities."""
    names = tuple(context.tokens)
    return StageRecord(context.positions, split_rows(score, names), split_rows(kept, names))


def keep_tokens(
    values: torch.Tensor, state: State, kept: torch.Tensor
) -> tuple[torch.Tensor, State]:
    """Tokens (B, L, C) with the patches `kept` (B, K) of n alone, ascending."""
    batch, length = values.shape[:2]
    prefix = int(length) - state.extra - state.count
    rows = torch.arange(length, device=kept.device).expand(batch, -1)
    index = torch.cat([rows[:, :prefix], kept + prefix, rows[:, length - state.extra :]], dim=1)
    positions = state.places(values).gather(1, kept)
    return gather_tokens(values, index), replace(state, positions=positions)


def append_token(
    values: torch.Tensor, state: State, token: torch.Tensor
) -> tuple[torch.Tensor, State]:
    """One more token (B, 1, C) after the others."""
    return torch.cat([values, token.to(values.dtype)], dim=1), replace(state, extra=state.extra + 1)


class Slimming(nn.Module):
    """Stages after `blocks` of a backbone, 0 for its input, that keep the shares `keep` of the remaining patches, each by a
    score of its own. With `merge` the dropped patches are merged; with `shared` the modalities of a triplet keep the same."""

    def __init__(
        self,
        blocks: Sequence[int],
        keep: Sequence[float],
        scores: Sequence[Score],
        merge: bool = True,
        shared: bool = True,
    ):
        super().__init__()
        self.blocks, self.keep, self.merge, self.shared = tuple(blocks), tuple(keep), merge, shared
        self.scores: Any = nn.ModuleList(scores)  # which does not know the type of its modules

    def counts(self, patches: int) -> tuple[int, ...]:
        """Patches of a grid of `patches` that each stage leaves."""
        return remaining_patches(patches, self.keep)

    def saliency(self, images: ByModality, window: Window, grid: Grid) -> ByModality:
        """That of images (B, 3, H, W), (B, N), where a score reads it; else {}."""
        return saliency(images, *window, grid) if self.reads_saliency else {}

    def cast_for_inference(self, precision: torch.dtype) -> "Slimming":
        """The same stages with copies of the scores that hold the weights which autocast would cast at every forward in
        `precision`; a score that may compute outside autocast is itself."""
        scores = [copy.deepcopy(each) if is_cast(each) else each for each in self.scores]
        for scorer in scores:
            for module in scorer.modules():
                if is_cast(scorer) and isinstance(module, nn.Linear):
                    module.to(precision)
        slimming = type(self)(self.blocks, self.keep, scores, self.merge, self.shared)
        return slimming.train(self.training)

    @property
    def reads_saliency(self) -> bool:
        return any(scorer.reads_saliency for scorer in self.scores)

    def forward(
        self,
        number: int,
        values: torch.Tensor,
        state: State,
        block: nn.Module,
        rope: torch.Tensor | None = None,
        **known: torch.Tensor | None,
    ) -> Step:
        """`run_stage` of stage `number` before `block`, whose rotary embedding is `rope`; `known` are its other arguments. A
        subclass may be another kind of stage, in this project's model alone: "package.module:Class" in MODEL.SLIM_SCORE."""
        keep = self.counts(math.prod(state.grid))[number]
        return run_stage(values, state, self.scores[number], keep, self.merge, **known)


def check_stages(blocks: Sequence[int], depth: int, name: str, what: str) -> None:
    """Refuse stages after blocks that `what`, which has `depth` blocks, does not have; `name` is that of the setting."""
    if not all(0 <= block < depth for block in blocks):
        raise UserError(
            f"{name} is {list(blocks)}, but {what} has {depth} blocks; choose among 0 (its input) to {depth - 1}."
        )


def sum_of_present(scores: ByModality, missing: ByModality) -> torch.Tensor:
    """Sum (B, n) of scores over the modalities that a triplet has, over all where it has none; `missing` as `State`'s."""
    total = torch.stack(list(scores.values()))
    if not missing:
        return total.sum(dim=0)
    none = torch.zeros_like(total[0, :, :1], dtype=torch.bool)
    absent = torch.stack([missing.get(name, none) for name in scores])
    return total.masked_fill(absent & ~absent.all(dim=0), 0).sum(dim=0)


def patch_shares(
    mask: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Foreground masks (B, 1, H, W) in [0, 1] → share in the foreground of each patch of `size` pixels, at steps of `stride`,
    (B, N)."""
    return F.avg_pool2d(mask, size, stride).flatten(1)


def remaining_patches(patches: int, shares: Sequence[float], name: str = "keep") -> tuple[int, ...]:
    """Patches that stages leave of a grid of `patches`, each its share of those of the stage before, rounded up."""
    counts = []
    for share in shares:
        if patches * share < 1:
            raise UserError(
                f"{name} is {list(shares)}, but {share} of {patches} patches is less than one; raise it."
            )
        patches = math.ceil(round(patches * share, 6))
        counts.append(patches)
    return tuple(counts)
