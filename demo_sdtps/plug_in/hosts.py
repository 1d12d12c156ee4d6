"""The code bases whose models `patch` knows, a row each (docs/plug_in.md), and the keys that their configurations get."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config.common import MISSING_CASES
from demo_sdtps.config.keys import KEYS
from demo_sdtps.runtime.errors import UserError

ADDED = {
    key.name.partition(".")[2]: key
    for key in KEYS
    if key.name.startswith(("MODEL.USE_SDTPS", "MODEL.SDTPS_", "MODEL.SLIM_"))
}
"""The schema's rows of SDTPS and of slimming, by their names in the section MODEL."""


def add_config(cfg: CfgNode) -> CfgNode:
    """Add the keys of SDTPS and of slimming that DeMo's configuration has not, in place, before `merge_from_file` → `cfg`."""
    if "MODEL" not in cfg:
        raise UserError(
            "The configuration has no section MODEL, so it is not DeMo's; give add_config DeMo's cfg."
        )
    if cfg.MODEL.is_frozen():
        raise UserError(
            "The configuration is frozen; call add_config before merge_from_file and freeze."
        )
    for name, key in ADDED.items():
        cfg.MODEL.setdefault(name, copy(key.default))
    return cfg


def check_values(cfg: CfgNode) -> None:
    """Raise `UserError` for a key of SDTPS or of slimming that is missing, or a value that makes no sense."""
    for name, key in ADDED.items():
        if name not in cfg.MODEL:
            raise UserError(
                f"The configuration has no key {key.name}; call demo_sdtps.add_config(cfg) before merge_from_file."
            )
        # DeMo's files may give a tuple for a list, and a whole number for another
        if expected := key.expected(type(key.default)(cfg.MODEL[name])):
            raise UserError(f"{key.name} is {cfg.MODEL[name]!r}; it must be {expected}.")


def missing_letters(cfg: CfgNode) -> str:
    """First letters of the modalities that are missing in evaluation."""
    letters = cfg.TEST.get("MISS", "")
    return letters if letters in MISSING_CASES else ""


@dataclass(frozen=True)
class Host:
    """What the forward of a model does that cannot be read from its modules."""

    name: str
    towers: tuple[str, ...] = ("BACKBONE.base",)  # paths of the Vision Transformers
    is_stacked: bool = False  # one call of the backbone encodes all modalities
    shared: bool = True  # see `slim`
    unslimmed: str = ""  # why slimming is refused
    backbone: str = ""  # module that returns (patches, global, …), of a model that SDTPS fits; else SDTPS is refused
    fusion: str = ""  # module that is given the slimmed tokens
    has_patterns: bool = False  # whether the forward knows return_pattern
    # argument of the forward that is true in training; else the module's mode says it
    mode: str = ""
    pair: int = 0  # place of the pair of SDTPS in the output in training


GRID = "it lays its patches out as a grid, which needs all of them"

HOSTS = {
    "DeMo": Host("DeMo", backbone="BACKBONE", fusion="generalFusion", has_patterns=True),
    "UGG": Host("UGG-ReID", backbone="BACKBONE", has_patterns=True),
    "Signal": Host(
        "Signal",
        towers=("clip_vision_encoder.base",),
        unslimmed=GRID,
        backbone="clip_vision_encoder",
        mode="training",
        pair=1,
    ),
    "MFRNet": Host("MFRNet", is_stacked=True, backbone="BACKBONE"),
    "MDReID": Host("MDReID", is_stacked=True),
    "IDEA": Host("IDEA", towers=("BACKBONE.base.visual",), unslimmed=GRID),
    "STMI": Host("STMI", towers=("BACKBONE.base.visual",)),
    "TOPReID": Host("TOP-ReID", towers=("NI.base", "TI.base", "RGB.base")),
    "MambaPro": Host("MambaPro", unslimmed=GRID),
    "HAPE": Host("HAPE"),
    "Uni_modal": Host("UPCL", shared=False),
    "EDITOR": Host(
        "EDITOR",
        unslimmed="it multiplies the attention of all blocks, which needs every token in each",
    ),
}
"""Hosts by the class of their model."""
BLOCKS = ("transformer.resblocks", "resblocks", "blocks")


def find_host(model: Any) -> Host:
    """The row of a model. Raises `UserError` for a model of no host."""
    for base in type(model).__mro__:
        if base.__name__ in HOSTS:
            return HOSTS[base.__name__]
    raise UserError(
        f"{type(model).__name__} is not the model of a code base that patch knows ({', '.join(HOSTS)}); "
        "demo_sdtps.slim(model) slims any Vision Transformer."
    )


def module_at(model: Any, path: str) -> Any:
    """The module at a path, None for none."""
    for name in path.split("."):
        model = getattr(model, name, None)
    return model


def block_paths(model: Any, host: Host) -> list[str]:
    """Paths of the blocks of each tower."""
    for name in BLOCKS:
        paths = [f"{tower}.{name}" for tower in host.towers]
        if all(module_at(model, path) is not None for path in paths):
            return paths
    raise UserError(
        f"{host.name} has no blocks ({' or '.join(BLOCKS)}) in {host.towers[0]}, between which slimming drops patches; leave "
        "MODEL.SLIM_BLOCKS empty."
    )
