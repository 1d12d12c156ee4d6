"""Token pruning of the model of a host by its configuration (docs/plug_in.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.config.keys import check_stage_keys
from demo_sdtps.modeling.scores import make_score
from demo_sdtps.plug_in.hosts import Host, block_paths, missing_letters
from demo_sdtps.runtime.errors import UserError
from vit_slim.stage import PER_POSITION, Score, State, check_stages
from vit_slim.towers import find_towers
from vit_slim.wrap import Slimming

if TYPE_CHECKING:
    from yacs.config import CfgNode


def patch_mask(mask: torch.Tensor, state: State) -> torch.Tensor:
    """STMI's mask of all patches (B, …), N for each image, for those of `state` → (B, n + E); the extra tokens have 1."""
    assert state.positions is not None
    return F.pad(mask.flatten(1).gather(1, state.positions), (0, state.extra), value=1)


PER_POSITION["use_mask"] = patch_mask


class HostSlimming(Slimming):
    """The stages of a host of several modalities, some of which are `missing` in evaluation."""

    missing: set[str]

    def votes(self, name: str) -> bool:
        # A second image of a modality has its name with a number.
        known = {modality for modality in MODALITIES if name.startswith(modality)}
        return bool(known) and (self.training or not known & self.missing)


def add_slimming(model: Any, host: Host, cfg: CfgNode, grid: tuple[int, int]) -> int:
    """Slim a model, whose patches stand on a `grid` of (rows, columns), in place; → the patches that are left."""
    name, keys = cfg.MODEL.SLIM_SCORE, cfg.MODEL
    if host.unslimmed:
        raise UserError(
            f"MODEL.SLIM_BLOCKS is {list(keys.SLIM_BLOCKS)}, but {host.name} cannot be slimmed: {host.unslimmed}; "
            "leave it empty."
        )
    check_stage_keys(keys)
    towers = [find_towers(model, path)[0] for path in block_paths(model, host)]
    depth = min(len(tower.blocks) for tower in towers)
    check_stages(keys.SLIM_BLOCKS, depth, "MODEL.SLIM_BLOCKS", host.name)
    width = towers[0].patches.out_channels
    scores = [make_score(name, cfg, width, grid) for _ in keys.SLIM_BLOCKS]
    if any(type(score).loss is not Score.loss for score in scores):
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, which learns by a loss, but the training of {host.name} adds none; "
            "choose another score, or train with this project's train_net.py."
        )
    settings = keys.SLIM_MERGE, keys.SLIM_SHARED and host.shared, towers
    slimming = HostSlimming(keys.SLIM_BLOCKS, keys.SLIM_KEEP, scores, *settings)
    slimming.missing = {one for one in MODALITIES if one[0].lower() in missing_letters(cfg)}
    slimming.attach(model, home=model)
    return slimming.counts(grid[0] * grid[1])[-1]
