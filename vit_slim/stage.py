"""A stage of token pruning: between two blocks it drops patches by a score and merges them (docs/method.md).

A stage is a pure function of tokens and their `State` (`run_stage`); images of several names are stacked along the batch
dimension, so that it is one gather, and the numbers of tokens depend on the settings alone. `Score` is the contract of a score.
wrap.py has the stages of a model (`Slimming`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from vit_slim.errors import UserError
from vit_slim.state import (
    ByName,
    Grid,
    State,
    append_token,
    keep_tokens,
    no_autocast,
    split_rows,
)


class StageRecord(NamedTuple):
    """What a stage kept of n patches: K of them. By name."""

    scored: ByName  # (B, n) int64: index on the grid of each patch that was scored
    score: ByName  # (B, n)
    kept: ByName  # (B, K) int64: index on the grid of each patch that was kept, ascending

    def mask(self, name: str, patches: int) -> torch.Tensor:
        """(B, N) float32: 1 for a patch of the grid that was kept."""
        kept = self.kept[name]
        zeros = torch.zeros(kept.shape[0], patches, dtype=torch.float32, device=kept.device)
        return zeros.scatter_(1, kept, 1.0)


class Step(NamedTuple):
    """What a stage returns."""

    values: torch.Tensor  # (B, L, C)
    state: State
    record: StageRecord
    loss: torch.Tensor | None  # of the score, a scalar with its weight


@dataclass(frozen=True)
class Context:
    """What a score reads: B images of each name, N patches per image, C channels. By name."""

    tokens: ByName  # patch tokens (B, N, C), row by row of the grid
    global_feats: ByName  # (B, C); inside the backbone the class tokens
    grid: Grid  # (rows, columns) of patches
    missing: ByName = field(default_factory=dict)  # whether the image is zeros, (B, 1) bool
    # (B, N) int64 index of each patch on the grid; where it is empty patch i is at i
    positions: ByName = field(default_factory=dict)
    state: State | None = None  # inside the backbone; it knows the images
    modality: str = ""  # the name of the images whose patches are scored

    def places(self, name: str) -> torch.Tensor:
        """(B, N) int64: index on the grid of each patch of the images `name`, also where `positions` is empty."""
        if name in self.positions:
            return self.positions[name]
        tokens = self.tokens[name]
        return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)

    @property
    def images(self) -> ByName:
        """(B, 3, H, W), inside the backbone."""
        return self.state.images if self.state else {}


@dataclass(frozen=True)
class Block:
    """The block after a stage, for what prunes inside it."""

    module: nn.Module
    forward: Callable[..., torch.Tensor]  # tokens (B, L, C), arguments by name → (B, L, C)
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the whole grid, by name

    def run(self, values: torch.Tensor, state: State) -> torch.Tensor:
        """Tokens (B, L, C) of `state` after the block."""
        return self.forward(values, **state.arguments(values, self.arguments))


class Score(nn.Module):
    """Base class of scores of patches, by which a stage keeps the best.

    A subclass defines `score`, and where it learns `loss`; a method that prunes inside a block defines `run`. Its constructor
    takes the tokens' width C, the grid (rows, columns) of patches, and by their names the settings that it reads.

    >>> class Contrast(Score):
    ...     def score(self, tokens, context):
    ...         return tokens.detach().float().std(dim=-1)
    """

    reads_saliency: Any = False  # whether it reads `State.saliency`

    def __init__(self, width: int, grid: Grid, **settings: object):
        super().__init__()

    def forward(self, context: Context) -> ByName:
        """`score` of the images of each name, (B, n). Raises `UserError` for another shape."""
        scores = {}
        for name, tokens in context.tokens.items():
            scores[name] = score = self.score(tokens, replace(context, modality=name))
            if score.shape != tokens.shape[:2]:
                raise UserError(
                    f"The score {type(self).__name__} gives {tuple(score.shape)} for {name}, but one number "
                    f"for each patch was expected, {tuple(tokens.shape[:2])}; correct its method score."
                )
        return scores

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        """tokens (B, n, C) of the images `context.modality` → (B, n), the best highest."""
        raise NotImplementedError(f"{type(self).__name__} defines no score.")

    def loss(self, scores: ByName, context: Context) -> torch.Tensor | None:
        """A loss of the scores (B, n) in training, a scalar with its weight; None for none."""
        return None

    def run(
        self,
        block: Block,
        values: torch.Tensor,
        state: State,
        keep: int,
        merge: bool,
        positions: torch.Tensor | None = None,
    ) -> Step:
        """The stage and the block after it: the block's input (B, L, C) → its output, with the state after the stage.

        A method that drops or merges between attention and MLP (ToMe, EViT) defines this in place of `score`: it computes the
        parts of `block.module`, with `state.arguments(values, block.arguments)`, and leaves `keep` patches. `positions` as in
        `run_stage`.
        """
        step = run_stage(values, state, self, keep, merge, positions)
        return step._replace(values=block.run(step.values, step.state))


def run_stage(
    values: torch.Tensor,
    state: State,
    scorer: Score,
    keep: int,
    merge: bool = True,
    positions: torch.Tensor | None = None,
) -> Step:
    """A stage on the input (B, L, C) of the block after it, which leaves `keep` patches by a score, and merges the others.
    `positions` (B, keep) are the patches to keep where these are known: blocks that are computed again for the backward pass
    keep what they kept."""
    context = make_context(values, state)
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
            # Of the logits, as the softmax over all patches is 0 at those that are far below the best.
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
    """The record of a stage by its score (B, n) and the positions (B, K) that it kept, of the images of all names."""
    names = tuple(context.tokens)
    return StageRecord(context.positions, split_rows(score, names), split_rows(kept, names))


def best(score: torch.Tensor, keep: int) -> torch.Tensor:
    """Indices of the `keep` best of n patches, best first: score (B, n) → (B, keep)."""
    # stable: of equal patches the first
    return score.detach().argsort(dim=-1, descending=True, stable=True)[..., :keep]


def softmax_mean(tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Means of tokens (B, n, C) with the softmax of logits (B, A, n) as weights → (B, A, C) float32.

    Without autocast: the small gradients of a softmax vanish in half precision.
    """
    with no_autocast(tokens):
        return logits.float().softmax(dim=-1) @ tokens.float()


def sum_of_present(scores: ByName, missing: ByName) -> torch.Tensor:
    """Sum (B, n) of scores over the images that are not missing, over all where all are; `missing` as `State`'s."""
    total = torch.stack(list(scores.values()))
    if not missing:
        return total.sum(dim=0)
    none = torch.zeros_like(total[0, :, :1], dtype=torch.bool)
    absent = torch.stack([missing.get(name, none) for name in scores])
    return total.masked_fill(absent & ~absent.all(dim=0), 0).sum(dim=0)


def check_stages(blocks: Sequence[int], depth: int, name: str, what: str) -> None:
    """Refuse stages after blocks that `what`, which has `depth` blocks, does not have; `name` is that of the setting."""
    if not all(0 <= block < depth for block in blocks):
        raise UserError(
            f"{name} is {list(blocks)}, but {what} has {depth} blocks; choose among 0 (its input) to {depth - 1}."
        )


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
