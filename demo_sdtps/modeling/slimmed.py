"""Slimming of this project's backbones: the modalities are one batch, on which every stage is one call."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map
from yacs.config import CfgNode

from demo_sdtps.modeling.backbones import Backbone
from demo_sdtps.modeling.modalities import ByModality, is_missing, split_rows
from demo_sdtps.modeling.slimming.scores import make_score
from demo_sdtps.modeling.slimming.scores.base import StageRecord
from demo_sdtps.modeling.slimming.stage import Slimming, check_stages, remaining_patches
from demo_sdtps.modeling.slimming.state import State


class BackboneOutput(NamedTuple):
    """The backbone's output of slimmed images."""

    tokens: ByModality  # (B, K, C), of the patches kept by the last stage
    class_tokens: ByModality  # (B, C)
    missing: ByModality  # whether an image is missing, (B, 1) bool; {} without images
    stages: tuple[StageRecord, ...]
    loss: torch.Tensor | None  # (1,): mean of the stages' losses; None where no score has one


def make_slimming(cfg: CfgNode, backbone: Backbone) -> Slimming:
    """The stages of MODEL.SLIM_BLOCKS for a backbone of this project."""
    model, blocks = cfg.MODEL, cfg.MODEL.SLIM_BLOCKS
    settings = backbone.vit.embed_dim, backbone.grid_size, model.MODALITIES
    scores = [make_score(model.SLIM_SCORE, cfg, *settings) for _ in blocks]
    check_stages(blocks, len(backbone.vit.blocks), "MODEL.SLIM_BLOCKS", model.TRANSFORMER_TYPE)
    remaining_patches(backbone.num_patches, model.SLIM_KEEP, "MODEL.SLIM_KEEP")
    return Slimming(blocks, model.SLIM_KEEP, scores, model.SLIM_MERGE, model.SLIM_SHARED)


def slim_backbone(
    slimming: Slimming,
    backbone: Backbone,
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
    with backbone.ready(rows[0].device):
        for chunk in zip(*backbone.chunks(*rows, images_each=count), strict=True):
            stem_rows = dict(zip(stem, chunk, strict=False))
            image_rows = dict(zip(images, chunk[count:], strict=False))
            masks = {} if foreground is None else dict.fromkeys(stem, chunk[-1])
            outputs.append(_run(slimming, backbone, stem_rows, image_rows, masks))
    # Chunks are of evaluation, which has no loss.
    join = lambda *rows: None if rows[0] is None else torch.cat(rows)  # noqa: E731
    return outputs[0] if len(outputs) == 1 else tree_map(join, *outputs)


def _run(
    slimming: Slimming,
    backbone: Backbone,
    stem: ByModality,
    images: ByModality,
    masks: ByModality,
) -> BackboneOutput:
    grid, names = backbone.grid_size, tuple(stem)
    known = slimming.saliency(images, backbone.patch_windows, grid)
    missing = is_missing(images)
    state = State(grid, names, slimming.shared, images, missing, masks, known)
    values, records, losses = torch.cat(list(stem.values())), [], []
    prefix, dtype = backbone.vit.num_prefix_tokens, values.dtype
    arguments = backbone.block_arguments()
    stops = (*slimming.blocks[1:], len(backbone.vit.blocks))
    for number, (start, stop) in enumerate(zip(slimming.blocks, stops, strict=True)):
        rope = state.arguments(values, arguments[start]).get("rope")
        step = slimming(number, values, state, backbone.vit.blocks[start], rope)
        state = step.state
        records.append(step.record)
        losses += [] if step.loss is None else [step.loss]
        values = backbone.run_blocks(step.values, state, start, stop)
    values = backbone.finish(values[:, : prefix + state.count])
    values = values.to(dtype) if backbone.precision else values
    parts = values[:, prefix:], values[:, 0]
    patches, class_tokens = (split_rows(each, state.names) for each in parts)
    loss = torch.stack(losses).mean(dim=0, keepdim=True) if losses else None
    return BackboneOutput(patches, class_tokens, missing, tuple(records), loss)
