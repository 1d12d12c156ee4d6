"""A stage of token pruning: between two blocks it drops patches by a score and merges them (docs/method.md).

A stage is a pure function of tokens and their `State` (`run_stage`); images of several names are stacked along the batch
dimension, so that it is one gather, and the numbers of tokens depend on the settings alone. `Score` is the contract of a score.
wrap.py has the stages of a model (`Slimming`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from vit_slim.errors import UserError

Grid = tuple[int, int]  # rows and columns of patches


@dataclass(frozen=True)
class State:
    """What is known of the images whose tokens (B, P + n + E, C) stand between two blocks: P prefix tokens (class token,
    registers), n patches, and E extra tokens, which the stages before have made of what they dropped.

    The rows are of the images `names`, one name after the other.
    """

    grid: Grid
    names: tuple[str, ...] = ("image",)
    shared: bool = False  # whether the images of all names keep the same patches
    images: torch.Tensor | None = None  # (B, 3, H, W)
    missing: torch.Tensor | None = None  # whether an image is zeros, (B, 1) bool; None: none is
    saliency: Any = None  # (B, N) float32 of the whole grid of N patches, where a score reads it
    extra: int = 0  # E
    # (B, n) int64, ascending: index of each patch on the grid; None: the whole grid
    positions: torch.Tensor | None = None
    # (B, K) int64: what the next stage keeps, in a block that is computed again for the backward pass
    choice: torch.Tensor | None = None

    @property
    def count(self) -> int:
        """n."""
        return prod(self.grid) if self.positions is None else int(self.positions.shape[1])

    def split(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Tokens (B, P + n + E, C) → prefix tokens (B, P, C), patches (B, n, C), extra tokens (B, E, C), as views."""
        prefix = int(values.shape[1]) - self.count - self.extra
        return values.split([prefix, self.count, self.extra], dim=1)

    def places(self, values: torch.Tensor) -> torch.Tensor:
        """(B, n) int64: index on the grid of each patch of tokens (B, …), also where `positions` is None."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.count, device=values.device).repeat(values.shape[0], 1)

    def sum_of_present(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores (B, …) → for each image the sum over the images of its row that are not missing, over all where all are."""
        count = len(self.names)
        total = scores.unflatten(0, (count, -1))
        if self.missing is not None:
            absent = self.missing.unflatten(0, (count, -1))
            total = total.masked_fill(absent & ~absent.all(dim=0), 0)
        return torch.cat(count * [total.sum(dim=0)])

    def arguments(self, values: torch.Tensor, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a block by name, for tokens (B, L, C), of those for the whole grid."""
        arguments = dict(whole)
        for name, change in PER_POSITION.items() if self.positions is not None else ():
            if whole.get(name) is not None:
                arguments[name] = change(whole[name], self)
        return arguments


def rotary(rope: torch.Tensor, state: State) -> torch.Tensor:
    """timm's rotary embedding of all patches, sines and cosines (N, D), (heads, N, D) or (B, heads, N, D), for those of
    `state` → (B, heads or 1, n + E, D); the extra tokens are not rotated."""
    sines, cosines = rope[..., :1, :].chunk(2, dim=-1)
    still = torch.cat([torch.zeros_like(sines), torch.ones_like(cosines)], dim=-1)
    return gather_rows(rope, state, -2, still)


def rotary_pair(pair: tuple[torch.Tensor, torch.Tensor], state: State) -> tuple[torch.Tensor, ...]:
    """`rotary` of transformers' embedding, cosines and sines (N, D)."""
    return rotary(torch.cat(pair[::-1], dim=-1), state).chunk(2, dim=-1)[::-1]


def attention_mask(mask: torch.Tensor, state: State) -> torch.Tensor:
    """A mask of attention between all L tokens, (L, L) or (B or 1, heads or 1, L or 1, L), for `state` → (B, heads or 1, L' or
    1, L'). Extra tokens are seen: true, or 0 where the mask is added."""
    visible = torch.ones_like if mask.dtype == torch.bool else torch.zeros_like
    for dim in (-2, -1) if mask.shape[-2] > 1 else (-1,):
        mask = gather_rows(mask, state, dim, visible(mask.narrow(dim, 0, 1)))
    return mask


def gather_rows(values: torch.Tensor, state: State, dim: int, row: torch.Tensor) -> torch.Tensor:
    """values (B or 1, heads or 1, …, …) of up to four dimensions that have the patches of the grid along `dim`, -2 or -1, and
    before them as many others as there are → those of `state`, and E times `row`, of length 1 along it."""
    assert state.positions is not None
    batch = state.positions.shape[0]  # by `len` an exported graph would know it
    prefix = torch.arange(values.shape[dim] - prod(state.grid), device=values.device)
    rows = prefix.expand(batch, -1), state.positions + len(prefix)
    index = F.pad(torch.cat(rows, dim=1), (0, state.extra), value=values.shape[dim])
    values = torch.cat([values, row], dim=dim)
    values = values.reshape(*[1] * (4 - values.ndim), *values.shape).expand(batch, -1, -1, -1)
    shape = list(values.shape)
    shape[dim] = index.shape[1]
    index = index[:, None, :, None] if dim == -2 else index[:, None, None, :]
    return values.gather(dim, index.expand(shape))


PER_POSITION: dict[str, Callable[[Any, State], Any]] = {
    "rope": rotary,
    "position_embeddings": rotary_pair,
    "attn_mask": attention_mask,
    "attention_mask": attention_mask,
}
"""What becomes of the arguments of blocks that have a row for each position, by their names: of timm (rope, attn_mask),
transformers (position_embeddings of DINOv3, attention_mask); a host adds its own."""


@dataclass(frozen=True)
class Block:
    """The block after a stage, for what prunes inside it."""

    module: nn.Module
    forward: Callable[..., torch.Tensor]  # tokens (B, L, C), arguments by name → (B, L, C)
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the whole grid, by name

    def run(self, values: torch.Tensor, state: State) -> torch.Tensor:
        """Tokens (B, L, C) of `state` after the block."""
        return self.forward(values, **state.arguments(values, self.arguments))


class Step(NamedTuple):
    """What a stage returns."""

    values: torch.Tensor  # (B, L, C)
    state: State
    score: torch.Tensor  # (B, n), of the patches before the stage
    loss: torch.Tensor | None  # of the score, a scalar with its weight


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

    def score(self, tokens: torch.Tensor, context: State) -> torch.Tensor:
        """Patch tokens (B, n, C) → (B, n), the best highest."""
        raise NotImplementedError(f"{type(self).__name__} defines no score.")

    def loss(self, scores: torch.Tensor, context: State) -> torch.Tensor | None:
        """A loss of the scores (B, n) in training, a scalar with its weight; None for none."""
        return None

    def run(self, block: Block, values: torch.Tensor, state: State, keep: int, merge: bool) -> Step:
        """The stage and the block after it: the block's input (B, L, C) → its output, with the state after the stage.

        A method that drops or merges between attention and MLP (ToMe, EViT) defines this in place of `score`: it computes the
        parts of `block.module`, with `state.arguments(values, block.arguments)`, and leaves `keep` patches.
        """
        step = run_stage(values, state, self, keep, merge)
        return step._replace(values=block.run(step.values, step.state))


def run_stage(
    values: torch.Tensor, state: State, scorer: Score, keep: int, merge: bool = True
) -> Step:
    """A stage on the input (B, L, C) of the block after it, which leaves `keep` patches by a score, and merges the others."""
    prefix, patches, extra = state.split(values)
    score = scorer.score(patches, state)
    loss = scorer.loss(score, state)
    if state.shared:
        score = state.sum_of_present(score)
    if keep == state.count:
        return Step(values, state, score, loss)
    kept = best(score, keep).sort(dim=1).values  # in the order of the grid
    if state.choice is not None:
        kept = torch.searchsorted(state.places(values), state.choice)
    # Several times as fast on a CPU as gather, whose index is as large as its result.
    rows = patches[torch.arange(patches.shape[0], device=kept.device).unsqueeze(-1), kept]
    remaining = torch.cat([prefix, rows, extra], dim=1)
    after = replace(state, positions=state.places(values).gather(1, kept), choice=None)
    if merge:
        # Means with the softmax of the logits as weights, as the softmax over all patches is 0 at those far below the best;
        # without autocast, as the small gradients of a softmax vanish in half precision. The meta device has none.
        dtype, kind = torch.promote_types(values.dtype, torch.float32), values.device.type
        logits = score.to(dtype).scatter(1, kept, -torch.inf).unsqueeze(1)
        with nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False):
            merged = logits.softmax(dim=-1) @ patches.to(dtype)
        remaining = torch.cat([remaining, merged.to(values.dtype)], dim=1)
        after = replace(after, extra=after.extra + 1)
    return Step(remaining, after, score, loss)


def best(score: torch.Tensor, keep: int) -> torch.Tensor:
    """Indices of the `keep` best of n patches, of equal ones the first: score (B, n) → (B, keep)."""
    if (
        torch.onnx.is_in_onnx_export()
    ):  # ONNX has no stable sort, but its TopK takes the first of equal ones
        return score.topk(keep, dim=1).indices
    return score.detach().argsort(dim=-1, descending=True, stable=True)[..., :keep]


def split_rows(rows: torch.Tensor, names: Collection[str]) -> dict[str, torch.Tensor]:
    """(M·B, …) of M names → (B, …) by name, as views."""
    # Not by `chunk`, with which an exported graph (torch.export) would know the batch.
    return dict(zip(names, rows.unflatten(0, (len(names), -1)).unbind(), strict=True))


def check_stages(blocks: Sequence[int], depth: int, name: str, what: str) -> None:
    """Refuse stages after blocks that `what`, which has `depth` blocks, does not have; `name` is that of the setting."""
    if not all(block in range(depth) for block in blocks):
        raise UserError(
            f"{name} is {list(blocks)}, but {what} has {depth} blocks; choose among 0 (its input) to {depth - 1}."
        )
