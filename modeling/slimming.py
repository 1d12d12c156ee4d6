"""Slimming drops patches between the blocks of the backbone, by a score, and merges them (docs/method.md).

Several modalities stand on the batch axis, one after the other, so that a stage is one gather, whatever it keeps. The numbers
of tokens depend on the configuration alone.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.scores import score_entry
from demo_sdtps.modeling.backbones.base import Backbone, Tokens
from demo_sdtps.modeling.class_attention import check_class_attention, class_attention, keys
from demo_sdtps.modeling.sdtps import select, take
from demo_sdtps.modeling.selectors import make_score
from demo_sdtps.modeling.selectors.base import ByModality, Context, Score, remaining_patches, split_rows
from demo_sdtps.modeling.selectors.cues import attention_divergence


@dataclass(frozen=True)
class Stage:
    """What one of MODEL.SLIM_BLOCKS kept of n patches: K of them. By modality."""

    scored: ByModality  # (B, n) int64: index on the grid of each patch that was scored
    score: ByModality  # (B, n)
    kept: ByModality  # (B, K) int64: index on the grid of each patch that was kept, ascending

    def mask(self, modality: str, patches: int) -> torch.Tensor:
        """(B, N) float32: 1 for a patch of the grid that was kept."""
        kept = self.kept[modality]
        return torch.zeros(kept.shape[0], patches, device=kept.device).scatter_(1, kept, 1.0)


@dataclass(frozen=True)
class Slimmed:
    """The backbone's output of slimmed images."""

    tokens: ByModality  # (B, K, C), of the patches kept by the last stage
    class_tokens: ByModality  # (B, C)
    stages: tuple[Stage, ...]
    weights: ByModality  # (B, K): `Score.weight` of the last stage's kept patches, for MODEL.PIFE_WEIGHTED; else empty
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
        self.counts = remaining_patches(backbone.num_patches, model.SLIM_KEEP)
        self.is_weighing = model.get("PIFE_WEIGHTED", False)  # a DeMo checkout has no such key
        self.depth, self.grid, self.shared, self.merge = depth, backbone.grid_size, model.SLIM_SHARED, model.SLIM_MERGE
        score_entry(model.SLIM_SCORE, "MODEL.SLIM_SCORE")
        self.scores = nn.ModuleList(make_score(model.SLIM_SCORE, cfg, backbone.vit.embed_dim, backbone.grid_size)
                                    for _ in self.blocks)
        for block, score in zip(self.blocks, self.stage_scores, strict=True):
            if score.needs_attention or score.needs_keys:
                check_class_attention(backbone.vit.blocks[block], f"MODEL.SLIM_SCORE is {model.SLIM_SCORE!r}")

    @property
    def stage_scores(self) -> list[Score]:
        return list(self.scores)  # type: ignore[arg-type]  # a ModuleList does not know the type of its modules

    def scalars(self) -> dict[str, float]:
        """`Score.scalars` of every stage: "<stage>/<name>", stages counted from 0."""
        return {f"{number}/{name}": value for number, score in enumerate(self.stage_scores)
                for name, value in score.scalars().items()}

    def forward(self, backbone: Backbone, stem: ByModality, missing: frozenset[str] = frozenset(),
                images: Mapping[str, torch.Tensor] | None = None, foreground: torch.Tensor | None = None) -> Slimmed:
        """Tokens after `blocks[0]` blocks, (B, P + N, C) by modality → those after all, slimmed.

        The images of `missing` modalities are zeros and have no say in what is kept. `images` and `foreground` (B, N), share of
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
        tokens, stages, losses, students = Tokens(torch.cat(list(stem.values()))), [], [], []
        distils = self.training and any(score.distil for score in self.stage_scores)
        for number, stop in enumerate((*self.blocks[1:], self.depth - distils)):
            context = self._context(backbone, tokens, names, number, missing, images, foreground)
            own = self.stage_scores[number].scores(context)
            loss = self.stage_scores[number].loss(own, context)
            losses += [] if loss is None else [loss]
            students.append((_places(tokens, self.grid), torch.cat(list(own.values()))))
            scores = self._summed(own, missing) if self.shared else own
            score = torch.cat(list(scores.values()))
            slimmed = self._drop(number, backbone.vit.num_prefix_tokens, tokens, score, context)
            stages.append(Stage(context.places, scores, split_rows(_places(slimmed, self.grid), names)))
            tokens = backbone.run_blocks(slimmed, self.blocks[number], stop)
        if distils:
            losses += self._distillation(backbone, tokens, students)
            tokens = backbone.run_blocks(tokens, self.depth - 1, self.depth)
        prefix = backbone.vit.num_prefix_tokens
        values = backbone.finish(tokens.values[:, :prefix + self.counts[-1]])
        values = values.to(given) if backbone.precision else values
        weights = self._weights(stages[-1]) if self.is_weighing else {}
        loss = torch.stack(losses).mean(dim=0, keepdim=True) if losses else None
        return Slimmed(split_rows(values[:, prefix:], names), split_rows(values[:, 0], names), tuple(stages), weights, loss)

    def _context(self, backbone: Backbone, tokens: Tokens, names: Sequence[str], number: int, missing: frozenset[str],
                 images: ByModality, foreground: torch.Tensor | None) -> Context:
        prefix, places = backbone.vit.num_prefix_tokens, _places(tokens, self.grid)
        patches = slice(prefix, prefix + places.shape[1])
        attention = {}
        if self.stage_scores[number].needs_attention:
            seen = class_attention(backbone, tokens, self.blocks[number])
            attention = split_rows(seen[..., patches], names)
        metric = {}
        if self.stage_scores[number].needs_keys:
            metric = split_rows(keys(backbone, tokens, self.blocks[number]).mean(dim=1)[:, patches], names)
        by_name, (size, stride) = split_rows(places, names), backbone.patch_windows
        shares = {} if foreground is None else {name: foreground.gather(1, seen) for name, seen in by_name.items()}
        return Context(split_rows(tokens.values[:, patches], names), split_rows(tokens.values[:, 0], names), self.grid,
                       missing=missing, attention=attention, keys=metric, places=by_name, foreground=shares, images=images,
                       patch_size=size, patch_stride=stride)

    def _distillation(self, backbone: Backbone, tokens: Tokens,
                      students: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        """The divergence of each stage's scores (places and score, B × n) from the attention of the last block, whose input
        is `tokens`, over the patches that are left."""
        places, prefix = _places(tokens, self.grid), backbone.vit.num_prefix_tokens
        attention = class_attention(backbone, tokens, self.depth - 1)[..., prefix:prefix + places.shape[1]]
        return [scorer.distil * attention_divergence(_at(places, scored, score), attention)
                for scorer, (scored, score) in zip(self.stage_scores, students, strict=True)]

    @staticmethod
    def _summed(scores: ByModality, missing: frozenset[str]) -> ByModality:
        """The sum over the modalities that are there, for each."""
        total = torch.stack([score for modality, score in scores.items() if modality not in missing]).sum(dim=0)
        return dict.fromkeys(scores, total)

    def _drop(self, number: int, prefix: int, tokens: Tokens, score: torch.Tensor, context: Context) -> Tokens:
        """Keep the best patches, and merge the others as the score says (`Score.merge`)."""
        keep, scorer, places = self.counts[number], self.stage_scores[number], _places(tokens, self.grid)
        if keep == places.shape[1]:
            return tokens
        tau = scorer.gumbel_tau if self.training and score.requires_grad else None
        kept, decision = select(score, keep, tau)
        kept = kept.sort(dim=1).values  # in the order of the grid
        first = torch.arange(prefix, device=kept.device).expand(kept.shape[0], -1)
        last = torch.arange(tokens.values.shape[1] - tokens.extra, tokens.values.shape[1], device=kept.device)
        index = torch.cat([first, kept + prefix, last.expand(kept.shape[0], -1)], dim=1)
        values, sizes = take(tokens.values, index), None if tokens.sizes is None else tokens.sizes.gather(1, index)
        if tau:
            # The factor is 1; it carries the straight-through gradient.
            values = values * F.pad(decision.gather(1, kept), (prefix, tokens.extra), value=1.0).unsqueeze(-1)
        slimmed = Tokens(values, places.gather(1, kept), sizes, tokens.extra)
        return scorer.merge(tokens, slimmed, score, decision, context) if self.merge else slimmed

    def _weights(self, stage: Stage) -> ByModality:
        """Of the patches that the last stage kept."""
        weights = {}
        for modality, score in stage.score.items():
            weights[modality] = self.stage_scores[-1].weight(_at(stage.kept[modality], stage.scored[modality], score))
        return weights


def make_slimming(cfg: CfgNode, backbone: Backbone) -> Slimming | None:
    """The slimming of a configuration, None for empty MODEL.SLIM_BLOCKS. Raises `UserError` for settings that do not fit."""
    return Slimming(cfg, backbone) if cfg.MODEL.SLIM_BLOCKS else None


def patch_shares(mask: torch.Tensor, backbone: Backbone) -> torch.Tensor:
    """Foreground masks (B, 1, H, W) in [0, 1] → share of each patch in the foreground, (B, N)."""
    return F.avg_pool2d(mask, *backbone.patch_windows).flatten(1)


def _places(tokens: Tokens, grid: tuple[int, int]) -> torch.Tensor:
    """(B, n) int64: index on the grid of each patch."""
    if tokens.places is not None:
        return tokens.places
    return torch.arange(grid[0] * grid[1], device=tokens.values.device).repeat(tokens.values.shape[0], 1)


def _at(places: torch.Tensor, scored: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """The scores of the patches at `places` (B, K) on the grid, given those (B, n) of the patches `scored` (B, n)."""
    return score.gather(1, torch.searchsorted(scored.contiguous(), places))


def _joined(parts: Sequence[Slimmed]) -> Slimmed:
    """The parts of a batch as one; evaluation has no loss."""
    def joined(fields: Sequence[ByModality]) -> ByModality:
        return {name: torch.cat([field[name] for field in fields]) for name in fields[0]}

    stages = tuple(Stage(*(joined([getattr(stage, name) for stage in same]) for name in ("scored", "score", "kept")))
                   for same in zip(*(part.stages for part in parts), strict=True))
    return Slimmed(joined([part.tokens for part in parts]), joined([part.class_tokens for part in parts]), stages,
                   joined([part.weights for part in parts]), None)
