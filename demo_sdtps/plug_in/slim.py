"""Slimming of the model of a host by its configuration (docs/plug_in.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demo_sdtps.config.check import check_stage_keys
from demo_sdtps.config.common import MODALITIES
from demo_sdtps.plug_in.hosts import block_paths, missing_letters
from demo_sdtps.runtime.errors import UserError
from vit_slim.scores import make_score
from vit_slim.scores.base import Score
from vit_slim.slim import attach_to
from vit_slim.towers import find_towers

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from demo_sdtps.plug_in.hosts import Host


def add_slimming(model: Any, host: Host, cfg: CfgNode, grid: tuple[int, int]) -> int:
    """Slim a model, whose patches stand on a `grid` of (rows, columns), in place; → the patches that are left."""
    name, keys = cfg.MODEL.SLIM_SCORE, cfg.MODEL
    if host.unslimmed:
        raise UserError(
            f"MODEL.SLIM_BLOCKS is {list(keys.SLIM_BLOCKS)}, but {host.name} cannot be slimmed: {host.unslimmed}; "
            "leave it empty."
        )
    check_stage_keys(keys)
    suffix = 1 if host.suffix and keys.get(host.suffix, False) else 0
    towers = [find_towers(model, path, suffix=suffix)[0] for path in block_paths(model, host)]
    width = towers[0].patches.out_channels
    scores = [make_score(name, cfg, width, grid) for _ in keys.SLIM_BLOCKS]
    if any(type(score).loss is not Score.loss for score in scores):
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, which learns by a loss, but the training of {host.name} adds none; "
            "choose another score, or train with this project's train_net.py."
        )
    letters = missing_letters(cfg)
    slimming = attach_to(
        model,
        model,
        towers,
        keys.SLIM_BLOCKS,
        keys.SLIM_KEEP,
        scores,
        merge=keys.SLIM_MERGE,
        restore=host.restore,
        follow=keys.SLIM_SHARED and host.shared,
        names=host.order,
        is_stacked=host.is_stacked,
        missing=frozenset(modality for modality in MODALITIES if modality[0].lower() in letters),
    )
    return slimming.counts(grid[0] * grid[1])[-1]
