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
from vit_slim.stage import Score, check_stages
from vit_slim.state import PER_POSITION, State
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
    """The stages of a host of several modalities: which images are whose, and which are missing in evaluation."""

    order: tuple[str, ...]  # in which the host encodes images that are not its arguments
    is_stacked: bool  # whether one call of the tower encodes all modalities
    missing: set[str]

    def begin(self) -> None:
        super().begin()
        self.encoded: list[str] = []  # modalities of the forward so far

    def modality(self, name: str) -> str:
        """That of an image by its name among the arguments; a second one has its name with a number."""
        return next((modality for modality in self.order if name.startswith(modality)), "")

    def votes(self, name: str) -> bool:
        modality = self.modality(name)
        return bool(modality) and (self.training or modality not in self.missing)

    def describe(self, images: torch.Tensor) -> tuple[tuple[str, ...], dict[str, torch.Tensor]]:
        known = self.images or []
        names = tuple(name for name in self.order if self.votes(name))
        if not self.is_stacked:
            here = [self.modality(name) for name, image in known if image is images]
            left = [name for name in self.order if name not in self.encoded]
            self.encoded.append([*here, *left, *self.order][0])
            names = (self.encoded[-1],)
        elif images.shape[0] != len(names) * next((image for _, image in known), images).shape[0]:
            names = self.order
        none = images.new_ones(images.shape[0] // len(names), 1, dtype=torch.bool)
        return names, {name: none for name in names if not self.votes(name)}


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
    slimming.order, slimming.is_stacked = host.order, host.is_stacked
    slimming.missing = {one for one in MODALITIES if one[0].lower() in missing_letters(cfg)}
    slimming.attach(model, home=model)
    return slimming.counts(grid[0] * grid[1])[-1]
