"""Rivals of token pruning as they were published, in a block of timm's VisionTransformer: MODEL.SLIM_SCORE
studies.baselines:ToMe or studies.baselines:EViT.

Both act between the attention and the MLP of the blocks of MODEL.SLIM_BLOCKS (0 is the first block), and read the queries and
keys that the attention computes anyway. They are written from their papers and from the behaviour of the published code. Left
out is EViT's schedule of training, which lowers the keep ratio from 1 over the first epochs. Neither method knows of other
modalities, so that every modality keeps its own patches, as with MODEL.SLIM_SHARED False. DropThenMerge joins ToMe to this
project's own drop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention
from timm.models.vision_transformer import Block as TimmBlock

from demo_sdtps.runtime.errors import UserError
from vit_slim.scores import Saliency
from vit_slim.stage import Block, Grid, Score, State, Step


@dataclass(frozen=True)
class MergedState(State):
    """The state of tokens some of which stand for several patches."""

    sizes: torch.Tensor | None = (
        None  # patches that each token stands for (B, P + n + E); None: one
    )
    # (B, E) int64: a position on the grid for each extra token, which later blocks keep or drop like a patch
    extra_positions: torch.Tensor | None = None

    def arguments(self, values: torch.Tensor, whole: Mapping[str, Any]) -> dict[str, Any]:
        """With proportional attention (ToMe, section 3): a key that stands for s patches weighs s times as much."""
        arguments = super().arguments(values, whole)
        if self.sizes is not None:
            arguments["attn_mask"] = log_sizes(self.sizes, values.dtype)
        return arguments


def log_sizes(sizes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sizes (B, L) → what proportional attention adds to the logits, (B, 1, 1, L)."""
    return sizes.log().to(dtype)[:, None, None, :]


@dataclass(frozen=True)
class Attended:
    """Tokens between the attention and the MLP of a block."""

    values: torch.Tensor  # (B, P + n + E, C)
    query: torch.Tensor  # (B, heads, P + n + E, D)
    key: torch.Tensor  # as query
    mask: torch.Tensor | None  # added to the logits


def attend(block: Any, values: torch.Tensor, sizes: torch.Tensor | None) -> Attended:
    """The first half of a block of timm on its input (B, L, C), whose tokens stand for `sizes` (B, L) patches."""
    attention, mask = block.attn, None
    heads = attention.qkv(block.norm1(values)).unflatten(-1, (3, attention.num_heads, -1))
    query, key, value = heads.permute(2, 0, 3, 1, 4)
    query, key = attention.q_norm(query), attention.k_norm(key)
    if sizes is not None:
        mask = log_sizes(sizes, query.dtype)
    if attention.fused_attn:
        dropout = attention.attn_drop.p if attention.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    else:
        logits = attention.scale * query @ key.transpose(2, 3)
        weights = (logits if mask is None else logits + mask).softmax(dim=-1)
        mixed = attention.attn_drop(weights) @ value
    mixed = attention.norm(mixed.transpose(1, 2).flatten(2))
    output = attention.proj_drop(attention.proj(mixed))
    return Attended(values + block.drop_path1(block.ls1(output)), query, key, mask)


class Rival(Score):
    """A method between attention and MLP: a subclass says by `reduce` which tokens come to the MLP."""

    def run(self, block: Block, values: torch.Tensor, state: State, keep: int, merge: bool) -> Step:
        module: Any = block.module
        if not (isinstance(module, TimmBlock) and isinstance(module.attn, Attention)):
            raise UserError(
                f"MODEL.SLIM_SCORE is {type(self).__name__}, which acts inside the blocks of timm's VisionTransformer, but the "
                f"backbone has {type(module).__name__}; choose another score or backbone."
            )
        attended = attend(module, values, getattr(state, "sizes", None))
        values, state, score = self.reduce(attended, state, keep)
        values = values + module.drop_path2(module.ls2(module.mlp(module.norm2(values))))
        return Step(values, state, score, None)

    def reduce(
        self, attended: Attended, state: State, keep: int
    ) -> tuple[torch.Tensor, State, torch.Tensor]:
        """The tokens that remain (B, L', C), their state, and a score of the patches (B, n)."""
        raise NotImplementedError


class ToMe(Rival):
    """Token merging (Bolya et al., ICLR 2023): of all tokens from the class token on, every second one is in a set A, the
    others in B. Those of A whose keys, mean over the heads, are most alike to a key of B become part of that token, by means
    weighted with the number of patches that each stands for. Prefix and extra tokens are neither merged nor merged into. The
    remaining tokens of A come before those of B.

    Of n patches ⌊n / 2⌋ can be merged at a block. A constant number r is given by `constant_shares`.
    """

    def reduce(
        self, attended: Attended, state: State, keep: int
    ) -> tuple[torch.Tensor, State, torch.Tensor]:
        values = attended.values
        prefix, patches, extra = state.split(values)
        count = state.count - keep
        start = int(prefix.shape[1])
        in_a, in_b = slice(start % 2, None, 2), slice(1 - start % 2, None, 2)
        with torch.no_grad(), torch.autocast(values.device.type, enabled=False):
            unit = F.normalize(state.split(attended.key.float().mean(dim=1))[1], dim=-1)
            likeness, partner = (unit[:, in_a] @ unit[:, in_b].transpose(1, 2)).max(dim=-1)
            score = torch.zeros(patches.shape[:2], device=values.device)
            score[:, in_a] = -likeness
        if count > state.count // 2:
            raise UserError(
                f"ToMe has to leave {keep} of {state.count} patches, but merges at most half of them at a block; raise "
                "MODEL.SLIM_KEEP, or merge at more MODEL.SLIM_BLOCKS."
            )
        if not count:
            return values, state, score
        order = likeness.argsort(dim=1, descending=True)
        merged, remaining = order[:, :count], order[:, count:].sort(dim=1).values
        sizes = getattr(state, "sizes", None)
        if sizes is None:
            sizes = torch.ones(values.shape[:2], device=values.device)
        before, size, after = state.split(sizes.unsqueeze(-1))
        goal = partner.gather(1, merged)

        def sums(rows: torch.Tensor) -> torch.Tensor:
            a, b = rows[:, in_a], rows[:, in_b]
            parts = take(a, merged)
            b = b.scatter_add(1, goal.unsqueeze(-1).expand_as(parts), parts)
            return torch.cat([take(a, remaining), b], dim=1)

        size_sums = sums(size)
        with torch.autocast(values.device.type, enabled=False):
            means = sums(patches.float() * size) / size_sums
        places = state.places(values)
        positions = torch.cat([places[:, in_a].gather(1, remaining), places[:, in_b]], dim=1)
        all_sizes = torch.cat([before, size_sums, after], dim=1).squeeze(-1)
        values = torch.cat([prefix, means.to(values.dtype), extra], dim=1)
        return values, after_stage(state, positions=positions, sizes=all_sizes), score


class EViT(Rival):
    """Attention of the class token, mean over the heads (Liang et al., ICLR 2022): of the m tokens after the class token
    ⌈keep ratio · m⌉ with the highest remain, highest first, and the sum of the others, weighted by it, is one more token.

    The extra token of an earlier block is one of the m. The keep ratio is the same at all blocks.
    """

    def __init__(self, width: int, grid: Grid, keep: Sequence[float] = (0.7,), **settings: object):
        super().__init__(width, grid, **settings)
        if len(set(keep)) != 1:
            raise UserError(
                f"MODEL.SLIM_KEEP is {list(keep)}, but EViT has one keep ratio for all blocks; give it for each."
            )
        self.ratio = keep[0]

    def reduce(
        self, attended: Attended, state: State, keep: int
    ) -> tuple[torch.Tensor, State, torch.Tensor]:
        values = attended.values
        start = int(values.shape[1]) - state.count - state.extra
        prefix, others, places = values[:, :start], values[:, start:], state.places(values)
        if state.extra:
            known = getattr(state, "extra_positions", None)
            places = torch.cat(
                [places, places[:, : state.extra] if known is None else known], dim=1
            )
        with torch.autocast(values.device.type, enabled=False):
            query, key = attended.query[:, :, :1].float(), attended.key.float()
            logits = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
            if attended.mask is not None:
                logits = logits + attended.mask.float()
            attention = logits.softmax(dim=-1)[:, :, 0, start:].mean(dim=1)
            index = attention.topk(ceil(round(self.ratio * int(others.shape[1]), 6)), dim=1).indices
            dropped = attention.scatter(1, index, 0.0)
            fused = (dropped.unsqueeze(1) @ others.float()).to(values.dtype)
        score = attention[:, : state.count].detach()
        if int(index.shape[1]) == int(others.shape[1]):
            return values, state, score
        nearest = places.gather(1, dropped.argmax(dim=1, keepdim=True))
        changes = {"positions": places.gather(1, index), "extra": 1, "extra_positions": nearest}
        values = torch.cat([prefix, take(others, index), fused], dim=1)
        return values, after_stage(state, **changes), score


class DropThenMerge(ToMe, Saliency):
    """The first stage drops patches by their saliency before its block, as `slim` does; the others are ToMe's."""

    def run(self, block: Block, values: torch.Tensor, state: State, keep: int, merge: bool) -> Step:
        method = Score if state.positions is None else ToMe
        return method.run(self, block, values, state, keep, merge)


def take(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """rows (B, n, C), index (B, K) → (B, K, C)."""
    return rows.gather(1, index.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))


def after_stage(state: State, **changes: Any) -> MergedState:
    """A state with other values of some fields."""
    known = {field.name: getattr(state, field.name) for field in fields(state)}
    return MergedState(**(known | {"choice": None} | changes))


def constant_shares(patches: int, count: int, blocks: int) -> list[float]:
    """MODEL.SLIM_KEEP for ToMe's constant schedule: at each of `blocks` blocks `count` of `patches` patches are merged, as many
    as half of the remaining allow."""
    shares = []
    for _ in range(blocks):
        left = patches - min(count, patches // 2)
        shares.append(left / patches)
        patches = left
    return shares
