"""Slimming is token pruning: it drops patches between the blocks of the backbone, by a score, and merges them (docs/method.md).

The modalities are stacked along the batch dimension, so that a stage is one gather, whatever it keeps. The numbers of tokens
depend on the settings alone. `Slimming` is free of its host: this project's model calls it in `slim_backbone`, any other
Vision Transformer through hooks (slim.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.modeling.class_attention import (
    CLASS_TOKEN,
    attention_weights,
    check_class_attention,
    keys,
)
from demo_sdtps.modeling.sdtps import gather_tokens, select
from demo_sdtps.modeling.slimming.scores.base import Context, Score, StageRecord
from demo_sdtps.modeling.slimming.tokens import ByModality, Tokens, is_missing, split_rows
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from demo_sdtps.modeling.backbones.base import Backbone

SETTING_NAMES = ("blocks", "keep", "score")


@dataclass(frozen=True)
class BackboneOutput:
    """The backbone's output of slimmed images."""

    tokens: ByModality  # (B, K, C), of the patches kept by the last stage
    class_tokens: ByModality  # (B, C)
    stages: tuple[StageRecord, ...]
    loss: (
        torch.Tensor | None
    )  # (1,): mean of the stages' losses with their weight; None where no score has one


@dataclass(frozen=True)
class StageOutput:
    """What one stage makes of the tokens between two blocks."""

    tokens: Tokens
    stage: StageRecord
    loss: torch.Tensor | None  # a scalar with its weight; None where the score has none


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
        self.scores = nn.ModuleList(scores)

    @property
    def stage_scores(self) -> list[Score]:
        return list(self.scores)  # type: ignore[arg-type]  # a ModuleList does not know the type of its modules

    def counts(self, patches: int) -> tuple[int, ...]:
        """Patches of a grid of `patches` that each stage leaves."""
        return remaining_patches(patches, self.keep)

    def foreground(self, context: Context) -> ByModality:
        """The masks (B, N) of what the host knows of the images, or pseudo-masks of a score that makes some; {} for none."""
        masks = (scorer.pseudo_masks(context, self.shared) for scorer in self.stage_scores)
        return context.foreground or next(filter(None, masks), {})

    def forward(
        self,
        number: int,
        tokens: Tokens,
        host_context: Context,
        names: Sequence[str],
        block: nn.Module,
        prefix: int,
        rope: torch.Tensor | None = None,
        score: torch.Tensor | None = None,
    ) -> StageOutput:
        """Stage `number` on the input of `block`, which it is before: `tokens`, rows of the modalities `names`, with `prefix`
        tokens before the patches.

        `host_context` has what the host knows of the images; its foreground (B, N) is of the whole grid. `rope` is the rotary
        embedding that the block is given. `score` (B, n) is used in place of the stage's score.
        """
        context = self._context(number, tokens, host_context, names, block, prefix, rope)
        loss = None
        if score is None:
            scores, loss = self._scores(number, context)
            score = torch.cat(list(scores.values()))
        slimmed = self._drop(number, tokens, score, context, prefix)
        kept = slimmed.grid_positions(math.prod(host_context.grid))
        return StageOutput(
            slimmed,
            StageRecord(context.positions, split_rows(score, names), split_rows(kept, names)),
            loss,
        )

    def _context(
        self,
        number: int,
        tokens: Tokens,
        context: Context,
        names: Sequence[str],
        block: nn.Module,
        prefix: int,
        rope: torch.Tensor | None,
    ) -> Context:
        """What the score of a stage reads."""
        scorer, positions = (
            self.stage_scores[number],
            tokens.grid_positions(math.prod(context.grid)),
        )
        patches, attention, metric = slice(prefix, prefix + positions.shape[1]), {}, {}
        if scorer.needs_attention:
            weights = attention_weights(block, tokens, CLASS_TOKEN, rope).squeeze(2)
            attention = split_rows(weights[..., patches], names)
        if scorer.needs_keys:
            metric = split_rows(keys(block, tokens.values).mean(dim=1)[:, patches], names)
        sizes = (
            torch.ones_like(positions, dtype=torch.float32)
            if tokens.sizes is None
            else tokens.sizes[:, patches]
        )
        by_name = split_rows(positions, names)
        shares = {
            name: share.gather(1, by_name[name]) for name, share in context.foreground.items()
        }
        return replace(
            context,
            tokens=split_rows(tokens.values[:, patches], names),
            keys=metric,
            attention=attention,
            class_tokens=split_rows(tokens.values[:, 0], names),
            positions=by_name,
            foreground=shares,
            sizes=split_rows(sizes, names) if scorer.needs_sizes else {},
        )

    def _scores(self, number: int, context: Context) -> tuple[ByModality, torch.Tensor | None]:
        """Scores (B, n) by modality, and their loss. Missing modalities do not affect shared ones."""
        scorer = self.stage_scores[number]
        stage_scores_of = scorer(context)
        loss = scorer.loss(stage_scores_of, context)
        if scorer.keeps_own or not self.shared:
            return stage_scores_of, loss
        return dict.fromkeys(
            stage_scores_of, sum_of_present(stage_scores_of, context.missing)
        ), loss

    def _drop(
        self, number: int, tokens: Tokens, score: torch.Tensor, context: Context, prefix: int
    ) -> Tokens:
        """Keep the patches that are best by the score (B, n), and merge the others as the scorer says (`Score.merge`)."""
        patches = math.prod(context.grid)
        positions, keep = tokens.grid_positions(patches), self.counts(patches)[number]
        if keep == positions.shape[1]:
            return tokens
        kept, decision = select(score, keep)
        kept = kept.sort(dim=1).values  # in the order of the grid
        first = torch.arange(prefix, device=kept.device).expand(kept.shape[0], -1)
        last = torch.arange(
            tokens.values.shape[1] - tokens.extra, tokens.values.shape[1], device=kept.device
        )
        index = torch.cat([first, kept + prefix, last.expand(kept.shape[0], -1)], dim=1)
        values, sizes = (
            gather_tokens(tokens.values, index),
            None if tokens.sizes is None else tokens.sizes.gather(1, index),
        )
        slimmed = Tokens(values, positions.gather(1, kept), sizes, tokens.extra)
        return (
            self.stage_scores[number].merge(tokens, slimmed, score, decision, context)
            if self.merge
            else slimmed
        )


def make_slimming(cfg: CfgNode, backbone: Backbone) -> Slimming:
    """The stages of MODEL.SLIM_BLOCKS for a backbone of this project."""
    from demo_sdtps.modeling.slimming.scores import make_score

    model, width = cfg.MODEL, backbone.vit.embed_dim
    scores = [
        make_score(model.SLIM_SCORE, cfg, width, backbone.grid_size, model.MODALITIES)
        for _ in model.SLIM_BLOCKS
    ]
    slimming = Slimming(
        model.SLIM_BLOCKS, model.SLIM_KEEP, scores, model.SLIM_MERGE, model.SLIM_SHARED
    )
    names = tuple(f"MODEL.SLIM_{name.upper()}" for name in SETTING_NAMES)
    check_stages(
        slimming, list(backbone.vit.blocks), model.TRANSFORMER_TYPE, names, model.SLIM_SCORE
    )
    remaining_patches(backbone.num_patches, model.SLIM_KEEP, names[1])
    return slimming


def check_stages(
    slimming: Slimming,
    blocks: Sequence[nn.Module],
    what: str,
    names: Sequence[str] = SETTING_NAMES,
    score: str = "",
) -> None:
    """Raise `UserError` for stages after blocks that `what` does not have, and for a score of the class token's attention where
    the blocks' attention is not known. `names` are those of the settings in the sentences."""
    if not all(0 <= block < len(blocks) for block in slimming.blocks):
        raise UserError(
            f"{names[0]} is {list(slimming.blocks)}, but {what} has {len(blocks)} blocks, so "
            f"patches can be dropped after blocks 0 (the input) to {len(blocks) - 1}; choose among these."
        )
    for block, scorer in zip(slimming.blocks, slimming.stage_scores, strict=True):
        if scorer.needs_attention or scorer.needs_keys:
            check_class_attention(
                blocks[block], f"{names[2]} is {score or type(scorer).__name__!r}"
            )


def slim_backbone(
    slimming: Slimming,
    backbone: Backbone,
    stem: ByModality,
    images: Mapping[str, torch.Tensor] | None = None,
    foreground: torch.Tensor | None = None,
) -> BackboneOutput:
    """Tokens after `slimming.blocks[0]` blocks of a backbone of this project, (B, P + N, C) by modality → those after all,
    slimmed.

    `images` tell which are missing and do not affect what is kept; they and `foreground` (B, N), share of each patch in the
    foreground mask, are for the scores that read them.
    """
    names, extras = tuple(stem), dict(images or {})
    rows = [*stem.values(), *extras.values(), *([] if foreground is None else [foreground])]
    size, stride = backbone.patch_windows
    outputs = []
    with backbone.ready(rows[0].device):
        for chunk in zip(*backbone.chunks(*rows, images_each=len(names)), strict=True):
            extra_tokens = dict(zip(extras, chunk[len(names) :], strict=False))
            context = Context(
                {},
                {},
                backbone.grid_size,
                missing=is_missing(extra_tokens),
                images=extra_tokens,
                patch_size=size,
                patch_stride=stride,
                foreground={} if foreground is None else dict.fromkeys(names, chunk[-1]),
            )
            outputs.append(_run(slimming, backbone, torch.cat(chunk[: len(names)]), names, context))
    return outputs[0] if len(outputs) == 1 else _join(outputs)


def _run(
    slimming: Slimming,
    backbone: Backbone,
    stem: torch.Tensor,
    names: Sequence[str],
    context: Context,
) -> BackboneOutput:
    context = replace(context, foreground=slimming.foreground(context))
    prefix, tokens, stages, losses = backbone.vit.num_prefix_tokens, Tokens(stem), [], []
    for number, (start, stop) in enumerate(
        zip(slimming.blocks, (*slimming.blocks[1:], len(backbone.vit.blocks)), strict=True)
    ):
        rope = backbone.block_arguments(tokens)(start).get("rope")
        step = slimming(number, tokens, context, names, backbone.vit.blocks[start], prefix, rope)
        stages.append(step.stage)
        losses += [] if step.loss is None else [step.loss]
        tokens = backbone.run_blocks(step.tokens, start, stop)
    values = backbone.finish(tokens.values[:, : prefix + slimming.counts(backbone.num_patches)[-1]])
    values = values.to(stem.dtype) if backbone.precision else values
    loss = torch.stack(losses).mean(dim=0, keepdim=True) if losses else None
    return BackboneOutput(
        split_rows(values[:, prefix:], names), split_rows(values[:, 0], names), tuple(stages), loss
    )


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
    """The parts of a batch as one; evaluation has no loss."""

    def joined(fields: Sequence[ByModality]) -> ByModality:
        return {name: torch.cat([field[name] for field in fields]) for name in fields[0]}

    stages = tuple(
        StageRecord(
            *(
                joined([getattr(stage, name) for stage in same])
                for name in ("scored", "score", "kept")
            )
        )
        for same in zip(*(chunk.stages for chunk in outputs), strict=True)
    )
    return BackboneOutput(
        joined([chunk.tokens for chunk in outputs]),
        joined([chunk.class_tokens for chunk in outputs]),
        stages,
        None,
    )
