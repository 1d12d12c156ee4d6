"""Slimming is token pruning: it drops patches between the blocks of the backbone, by a score, and merges them (docs/method.md).

The modalities are stacked along the batch dimension, so that a stage is one gather, whatever it keeps. The numbers of tokens
depend on the configuration alone.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.modeling.backbones.base import Backbone, Tokens
from demo_sdtps.modeling.class_attention import CLASS_TOKEN, attention_weights, check_class_attention, keys
from demo_sdtps.modeling.scores import make_score
from demo_sdtps.modeling.scores.base import ByModality, Context, Score, Stage, remaining_patches, split_rows
from demo_sdtps.modeling.sdtps import select, take


@dataclass(frozen=True)
class Slimmed:
    """The backbone's output of slimmed images."""

    tokens: ByModality  # (B, K, C), of the patches kept by the last stage
    class_tokens: ByModality  # (B, C)
    stages: tuple[Stage, ...]
    loss: torch.Tensor | None  # (1,): mean of the stages' losses with their weight; None where no score has one


class Slimming(nn.Module):
    """The stages of MODEL.SLIM_BLOCKS, each with a score of its own. `counts` are the patches that each keeps.

    Raises `UserError` for blocks that the backbone does not have, where less than one patch would be left, and for a score of
    the class token's attention where the blocks' attention is not known.
    """

    def __init__(self, cfg: CfgNode, backbone: Backbone):
        super().__init__()
        model, depth = cfg.MODEL, len(backbone.vit.blocks)
        self.blocks = tuple(model.SLIM_BLOCKS)
        if not all(0 <= block < depth for block in self.blocks):
            raise UserError(f"MODEL.SLIM_BLOCKS is {list(self.blocks)}, but {model.TRANSFORMER_TYPE} has {depth} blocks, so "
                            f"patches can be dropped after blocks 0 (the input) to {depth - 1}; choose among these.")
        self.patches, self.counts = backbone.num_patches, remaining_patches(backbone.num_patches, model.SLIM_KEEP)
        self.depth, self.grid, self.shared, self.merge = depth, backbone.grid_size, model.SLIM_SHARED, model.SLIM_MERGE
        self.scores = nn.ModuleList(make_score(model.SLIM_SCORE, cfg, backbone.vit.embed_dim, backbone.grid_size)
                                    for _ in self.blocks)
        for block, score in zip(self.blocks, self.stage_scores, strict=True):
            if score.needs_attention or score.needs_keys:
                check_class_attention(backbone.vit.blocks[block], f"MODEL.SLIM_SCORE is {model.SLIM_SCORE!r}")

    @property
    def stage_scores(self) -> list[Score]:
        return list(self.scores)  # type: ignore[arg-type]  # a ModuleList does not know the type of its modules

    def forward(self, backbone: Backbone, stem: ByModality, missing: frozenset[str] = frozenset(),
                images: Mapping[str, torch.Tensor] | None = None, foreground: torch.Tensor | None = None) -> Slimmed:
        """Tokens after `blocks[0]` blocks, (B, P + N, C) by modality → those after all, slimmed.

        The images of `missing` modalities are zeros and do not affect what is kept. `images` and `foreground` (B, N), share of
        each patch in the foreground mask, are for the scores that read them.
        """
        names, extras = tuple(stem), dict(images or {})
        rows = [*stem.values(), *extras.values(), *([] if foreground is None else [foreground])]
        parts = []
        with backbone.ready(rows[0].device):
            for part in zip(*backbone.chunks(*rows, images_each=len(names)), strict=True):
                seen = dict(zip(extras, part[len(names):], strict=False))
                parts.append(self._run(backbone, dict(zip(names, part, strict=False)), missing, seen,
                                       None if foreground is None else part[-1]))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _run(self, backbone: Backbone, stem: ByModality, missing: frozenset[str], images: ByModality,
             foreground: torch.Tensor | None) -> Slimmed:
        names, given = tuple(stem), next(iter(stem.values())).dtype
        tokens, stages, losses = Tokens(torch.cat(list(stem.values()))), [], []
        for number, stop in enumerate((*self.blocks[1:], self.depth)):
            context = self._context(backbone, tokens, names, number, missing, images, foreground)
            own = self.stage_scores[number](context)
            loss = self.stage_scores[number].loss(own, context)
            losses += [] if loss is None else [loss]
            scores = self._sum(own, missing) if self.shared else own
            score = torch.cat(list(scores.values()))
            slimmed = self._drop(number, backbone.vit.num_prefix_tokens, tokens, score, context)
            stages.append(Stage(context.positions, scores, split_rows(slimmed.grid_positions(self.patches), names)))
            tokens = backbone.run_blocks(slimmed, self.blocks[number], stop)
        prefix = backbone.vit.num_prefix_tokens
        values = backbone.finish(tokens.values[:, :prefix + self.counts[-1]])
        values = values.to(given) if backbone.precision else values
        loss = torch.stack(losses).mean(dim=0, keepdim=True) if losses else None
        return Slimmed(split_rows(values[:, prefix:], names), split_rows(values[:, 0], names), tuple(stages), loss)

    def _context(self, backbone: Backbone, tokens: Tokens, names: Sequence[str], number: int, missing: frozenset[str],
                 images: ByModality, foreground: torch.Tensor | None) -> Context:
        prefix, positions = backbone.vit.num_prefix_tokens, tokens.grid_positions(self.patches)
        patches = slice(prefix, prefix + positions.shape[1])
        attention = {}
        if self.stage_scores[number].needs_attention:
            seen = attention_weights(backbone, tokens, self.blocks[number], CLASS_TOKEN).squeeze(2)
            attention = split_rows(seen[..., patches], names)
        metric = {}
        if self.stage_scores[number].needs_keys:
            metric = split_rows(keys(backbone, tokens, self.blocks[number]).mean(dim=1)[:, patches], names)
        by_name, (size, stride) = split_rows(positions, names), backbone.patch_windows
        shares = {} if foreground is None else {name: foreground.gather(1, seen) for name, seen in by_name.items()}
        return Context(split_rows(tokens.values[:, patches], names), split_rows(tokens.values[:, 0], names), self.grid,
                       missing=missing, attention=attention, keys=metric, positions=by_name, foreground=shares, images=images,
                       patch_size=size, patch_stride=stride)

    @staticmethod
    def _sum(scores: ByModality, missing: frozenset[str]) -> ByModality:
        """The sum over the modalities that are there, for each."""
        total = torch.stack([score for modality, score in scores.items() if modality not in missing]).sum(dim=0)
        return dict.fromkeys(scores, total)

    def _drop(self, number: int, prefix: int, tokens: Tokens, score: torch.Tensor, context: Context) -> Tokens:
        """Keep the best patches, and merge the others as the score says (`Score.merge`)."""
        keep, scorer, positions = self.counts[number], self.stage_scores[number], tokens.grid_positions(self.patches)
        if keep == positions.shape[1]:
            return tokens
        kept, decision = select(score, keep)
        kept = kept.sort(dim=1).values  # in the order of the grid
        first = torch.arange(prefix, device=kept.device).expand(kept.shape[0], -1)
        last = torch.arange(tokens.values.shape[1] - tokens.extra, tokens.values.shape[1], device=kept.device)
        index = torch.cat([first, kept + prefix, last.expand(kept.shape[0], -1)], dim=1)
        values, sizes = take(tokens.values, index), None if tokens.sizes is None else tokens.sizes.gather(1, index)
        slimmed = Tokens(values, positions.gather(1, kept), sizes, tokens.extra)
        return scorer.merge(tokens, slimmed, score, decision, context) if self.merge else slimmed


def patch_shares(mask: torch.Tensor, backbone: Backbone) -> torch.Tensor:
    """Foreground masks (B, 1, H, W) in [0, 1] → share of each patch in the foreground, (B, N)."""
    return F.avg_pool2d(mask, *backbone.patch_windows).flatten(1)


def _joined(parts: Sequence[Slimmed]) -> Slimmed:
    """The parts of a batch as one; evaluation has no loss."""
    def joined(fields: Sequence[ByModality]) -> ByModality:
        return {name: torch.cat([field[name] for field in fields]) for name in fields[0]}

    stages = tuple(Stage(*(joined([getattr(stage, name) for stage in same]) for name in ("scored", "score", "kept")))
                   for same in zip(*(part.stages for part in parts), strict=True))
    return Slimmed(joined([part.tokens for part in parts]), joined([part.class_tokens for part in parts]), stages,
                   None)
