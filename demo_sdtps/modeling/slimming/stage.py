"""Slimming is token pruning: it drops patches between the blocks of the backbone, by a score, and merges them (docs/method.md).

The modalities are stacked along the batch dimension, so that a stage is one gather. The numbers of tokens depend on the
settings alone. This project's model calls `Slimming` in `slim_backbone`, any other Vision Transformer by hooks (slim.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.modeling import class_attention
from demo_sdtps.modeling.modalities import ByModality, is_missing, split_rows
from demo_sdtps.modeling.sdtps import gather_tokens, select
from demo_sdtps.modeling.slimming.scores import make_score
from demo_sdtps.modeling.slimming.scores.base import Context, Score, StageRecord
from demo_sdtps.modeling.slimming.tokens import Tokens
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from demo_sdtps.modeling.backbones.base import Backbone


@dataclass(frozen=True)
class BackboneOutput:
    """The backbone's output of slimmed images."""

    tokens: ByModality  # (B, K, C), of the patches kept by the last stage
    class_tokens: ByModality  # (B, C)
    stages: tuple[StageRecord, ...]
    loss: torch.Tensor | None  # (1,): mean of the stages' losses; None where no score has one


@dataclass(frozen=True)
class BlockInput:
    """The input of the block after a stage."""

    tokens: Tokens  # rows of the modalities `names`
    names: Sequence[str]
    block: nn.Module
    prefix: int  # tokens before the patches
    rope: torch.Tensor | None = None  # rotary embedding that the block is given


class Slimming(nn.Module):
    """Stages after `blocks` of the backbone, 0 for its input, that keep the shares `keep` of the remaining patches, each by a
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

    def foreground(self, context: Context) -> ByModality:
        """The masks (B, N) of what the host knows of the images, or pseudo-masks of a score that makes some; {} for none."""
        masks = (scorer.pseudo_masks(context, self.shared) for scorer in self.scores)
        return context.foreground or next(filter(None, masks), {})

    def forward(
        self, number: int, inputs: BlockInput, known: Context, score: torch.Tensor | None = None
    ) -> tuple[Tokens, StageRecord, torch.Tensor | None]:
        """Stage `number` on the input of the block after it → the remaining tokens, what the stage kept, and the loss of its
        score, a scalar with its weight, None where it has none.

        `known` has what the host knows of the images; its foreground (B, N) is of the whole grid. `score` (B, n) is used in
        place of the stage's score.
        """
        context, loss = self._context(number, inputs, known), None
        if score is None:
            scores, loss = self._scores(number, context)
            score = torch.cat(list(scores.values()))
        remaining = self._drop(number, inputs, score, context)
        kept = remaining.grid_positions(math.prod(known.grid))
        by_name = (split_rows(rows, inputs.names) for rows in (score, kept))
        return remaining, StageRecord(context.positions, *by_name), loss

    def _context(self, number: int, inputs: BlockInput, context: Context) -> Context:
        """What the score of a stage reads."""
        scorer, tokens, block = self.scores[number], inputs.tokens, inputs.block
        positions = tokens.grid_positions(math.prod(context.grid))
        patches = slice(inputs.prefix, inputs.prefix + positions.shape[1])
        rows = {"tokens": tokens.values[:, patches], "class_tokens": tokens.values[:, 0]}
        rows["positions"] = positions
        if scorer.needs_attention:
            weights = class_attention.attention_weights(
                block, tokens, scorer.attention_of, inputs.rope
            )
            rows["attention"] = weights.mean(dim=2)[..., patches]
        if scorer.needs_keys:
            rows["keys"] = class_attention.keys(block, tokens.values).mean(dim=1)[:, patches]
        if scorer.needs_sizes:
            ones = torch.ones_like(positions, dtype=torch.float32)
            rows["sizes"] = ones if tokens.sizes is None else tokens.sizes[:, patches]
        split: Any = {field: split_rows(part, inputs.names) for field, part in rows.items()}
        places, shares = split["positions"], context.foreground.items()
        foreground = {name: share.gather(1, places[name]) for name, share in shares}
        return replace(context, foreground=foreground, **split)

    def _scores(self, number: int, context: Context) -> tuple[ByModality, torch.Tensor | None]:
        """Scores (B, n) by modality, and their loss. Missing modalities do not affect shared ones."""
        scorer = self.scores[number]
        scores = scorer(context)
        loss = scorer.loss(scores, context)
        if not scorer.keeps_own and self.shared:
            scores = dict.fromkeys(scores, sum_of_present(scores, context.missing))
        return scores, loss

    def _drop(
        self, number: int, inputs: BlockInput, score: torch.Tensor, context: Context
    ) -> Tokens:
        """Keep the patches that are best by the score (B, n), and merge the others as the scorer says (`Score.merge`)."""
        patches, tokens = math.prod(context.grid), inputs.tokens
        positions, keep = tokens.grid_positions(patches), self.counts(patches)[number]
        if keep == positions.shape[1]:
            return tokens
        kept, decision = select(score, keep)
        kept = kept.sort(dim=1).values  # in the order of the grid
        batch, length = tokens.values.shape[:2]
        rows = torch.arange(length, device=kept.device).expand(batch, -1)
        ends = rows[:, : inputs.prefix], rows[:, length - tokens.extra :]
        index = torch.cat([ends[0], kept + inputs.prefix, ends[1]], dim=1)
        sizes = None if tokens.sizes is None else tokens.sizes.gather(1, index)
        values, positions = gather_tokens(tokens.values, index), positions.gather(1, kept)
        remaining = Tokens(values, positions, sizes, tokens.extra)
        if not self.merge:
            return remaining
        return self.scores[number].merge(tokens, remaining, score, decision, context)


def make_slimming(cfg: "CfgNode", backbone: "Backbone") -> Slimming:
    """The stages of MODEL.SLIM_BLOCKS for a backbone of this project."""
    model, width, grid = cfg.MODEL, backbone.vit.embed_dim, backbone.grid_size
    name, stages, keep = model.SLIM_SCORE, model.SLIM_BLOCKS, model.SLIM_KEEP
    scores = [make_score(name, cfg, width, grid, model.MODALITIES) for _ in stages]
    slimming = Slimming(stages, keep, scores, model.SLIM_MERGE, model.SLIM_SHARED)
    keys = "MODEL.SLIM_BLOCKS", f"MODEL.SLIM_SCORE is {name!r}"
    check_stages(slimming, list(backbone.vit.blocks), model.TRANSFORMER_TYPE, keys)
    remaining_patches(backbone.num_patches, keep, "MODEL.SLIM_KEEP")
    return slimming


def check_stages(
    slimming: Slimming, blocks: Sequence[nn.Module], what: str, names: Sequence[str]
) -> None:
    """Refuse stages after blocks that `what` does not have, and a score of the class token's attention where the blocks'
    attention is not known. `names` are that of the setting of the blocks, and the score's with its value."""
    if not all(0 <= block < len(blocks) for block in slimming.blocks):
        raise UserError(
            f"{names[0]} is {list(slimming.blocks)}, but {what} has {len(blocks)} blocks; choose among 0 (its "
            f"input) to {len(blocks) - 1}."
        )
    for block, scorer in zip(slimming.blocks, slimming.scores, strict=True):
        if scorer.needs_attention or scorer.needs_keys:
            class_attention.check_class_attention(blocks[block], names[1])


def slim_backbone(
    slimming: Slimming,
    backbone: "Backbone",
    stem: ByModality,
    images: Mapping[str, torch.Tensor] | None = None,
    foreground: torch.Tensor | None = None,
) -> BackboneOutput:
    """Tokens after `slimming.blocks[0]` blocks of a backbone of this project, (B, P + N, C) by modality → those after all.

    `images` tell which are missing; they and `foreground` (B, N), share of each patch in the foreground mask, are for the
    scores that read them.
    """
    images, count, outputs = images or {}, len(stem), []
    rows = [*stem.values(), *images.values(), *([] if foreground is None else [foreground])]
    size, stride = backbone.patch_windows
    known = Context({}, {}, backbone.grid_size, patch_size=size, patch_stride=stride)
    with backbone.ready(rows[0].device):
        for chunk in zip(*backbone.chunks(*rows, images_each=count), strict=True):
            stem_rows = dict(zip(stem, chunk, strict=False))
            image_rows = dict(zip(images, chunk[count:], strict=False))
            masks = {} if foreground is None else dict.fromkeys(stem, chunk[-1])
            missing = is_missing(image_rows)
            context = replace(known, images=image_rows, missing=missing, foreground=masks)
            outputs.append(_run(slimming, backbone, stem_rows, context))
    return outputs[0] if len(outputs) == 1 else _join(outputs)


def _run(
    slimming: Slimming, backbone: "Backbone", stem: ByModality, context: Context
) -> BackboneOutput:
    context = replace(context, foreground=slimming.foreground(context))
    names, tokens, stages, losses = tuple(stem), Tokens(torch.cat(list(stem.values()))), [], []
    prefix, dtype = backbone.vit.num_prefix_tokens, tokens.values.dtype
    stops = (*slimming.blocks[1:], len(backbone.vit.blocks))
    for number, (start, stop) in enumerate(zip(slimming.blocks, stops, strict=True)):
        rope = backbone.block_arguments(tokens)(start).get("rope")
        inputs = BlockInput(tokens, names, backbone.vit.blocks[start], prefix, rope)
        tokens, stage, loss = slimming(number, inputs, context)
        stages.append(stage)
        losses += [] if loss is None else [loss]
        tokens = backbone.run_blocks(tokens, start, stop)
    values = backbone.finish(tokens.values[:, : prefix + slimming.counts(backbone.num_patches)[-1]])
    values = values.to(dtype) if backbone.precision else values
    patches, class_tokens = (split_rows(part, names) for part in (values[:, prefix:], values[:, 0]))
    loss = torch.stack(losses).mean(dim=0, keepdim=True) if losses else None
    return BackboneOutput(patches, class_tokens, tuple(stages), loss)


def sum_of_present(scores: ByModality, missing: ByModality) -> torch.Tensor:
    """Sum (B, n) of scores over the modalities that a triplet has, over all where it has none; `missing` as `Context`'s."""
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


def _join(outputs: Sequence[BackboneOutput]) -> BackboneOutput:
    """The chunks of a batch as one; evaluation has no loss."""

    def join(*rows: ByModality) -> ByModality:
        return {modality: torch.cat([row[modality] for row in rows]) for modality in rows[0]}

    tokens, class_tokens = map(join, *((chunk.tokens, chunk.class_tokens) for chunk in outputs))
    stages = (
        StageRecord(*map(join, *((stage.scored, stage.score, stage.kept) for stage in parts)))
        for parts in zip(*(chunk.stages for chunk in outputs), strict=True)
    )
    return BackboneOutput(tokens, class_tokens, tuple(stages), None)
