"""The table of effects, and the ground that all of them stand on: a tiny data set and a tiny model."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from commands import BACKBONE_WIDTH, CONFIG, SMALL
from layouts import write_msvr310, write_rgbnt201
from numeric import assert_close, generator, seeded, tolerance
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.modeling import make_model

IDENTITIES, CAMERAS = 5, 8
"""Of the training split that layouts.py writes."""
WIDTH = BACKBONE_WIDTH
LABELS = torch.tensor([0, 0, 1, 1])
BASE = (
    *SMALL,
    *shlex.split(
        "SOLVER.MAX_EPOCHS 1 SOLVER.EVAL_UNTRAINED False DATASETS.ROOT_DIR "
        "{root}/data OUTPUT_DIR {root}/outputs/run"
    ),
)


class Effect(NamedTuple):
    observe: Callable[[CfgNode], object]
    expected: dict[str, object]
    others: tuple[str, ...]


EFFECTS: dict[str, Effect] = {}


def effect(key: str, expected: dict[str, object], *others: str) -> Callable:
    """The decorated function sees expected[value] of a configuration with `key` at `value`.

    Values are texts of the command line, as are the KEYs and VALUEs in `others`; {root} stands for the ground's folder,
    {value} for the value. A function can observe several keys, each with a line of its own.
    """

    def enter(observe):
        assert key not in EFFECTS, key
        EFFECTS[key] = Effect(observe, expected, others)
        return observe

    return enter


def configuration(root: Path, key: str, value: str) -> CfgNode:
    opts = [*BASE, *EFFECTS[key].others, key, value]
    return load_cfg(
        CONFIG, [opt.replace("{value}", value).replace("{root}", str(root)) for opt in opts]
    )


def write_ground(root: Path) -> None:
    """data/: RGBNT201 and MSVR310; other/: RGBNT201 without a triplet; weights of the backbone and of the whole model."""
    write_rgbnt201(root / "data")
    write_msvr310(root / "data")
    lost = write_rgbnt201(root / "other")["train"][0]
    for path in lost.paths:
        Path(path).unlink()
    square = tuple(
        shlex.split("MODEL.PATCH_SIZE 16 INPUT.SIZE_TRAIN [64,64] INPUT.SIZE_TEST [64,64]")
    )
    pretrained, trained = (model_of(load_cfg(CONFIG, [*SMALL, *opts])) for opts in (square, ()))
    for model in (pretrained, trained):
        torch.nn.init.constant_(model.backbone.vit.norm.weight, MARK)
    torch.save(pretrained.backbone.vit.state_dict(), root / "backbone.pth")
    torch.save(
        {"model": trained.state_dict(), "dataset": "RGBNT201", "camera_num": CAMERAS},
        root / "weights.pth",
    )


MARK = 7.5
"""The final norm's weights in the files of `write_ground`."""


def model_of(cfg: CfgNode):
    torch.manual_seed(seeded())
    return make_model(cfg, IDENTITIES, CAMERAS)


def images_of(cfg: CfgNode, seed: int = 1) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Random triplets (4, 3, H, W) by modality and their cameras."""
    draws = generator(seed)
    images = {
        modality: torch.randn(len(LABELS), 3, *cfg.INPUT.SIZE_TRAIN, generator=draws)
        for modality in MODALITIES
    }
    return images, torch.arange(len(LABELS))


def is_reported(call: Callable, *arguments) -> bool:
    """Whether a call ends in a sentence for the user."""
    try:
        call(*arguments)
    except UserError:
        return True
    return False


def is_near(found, expected, *lengths: int) -> bool:
    """Whether a result is the expected one but for the roundings of sums of these lengths."""
    try:
        assert_close(found, expected, *lengths)
    except AssertionError:
        return False
    return True


def are_most_unlike(kept: torch.Tensor, tokens: torch.Tensor, *lengths: int) -> bool:
    """Whether the kept (B, N) of the tokens (B, N, C) have the least cosines with the mean, but for roundings of these sums."""
    tokens = tokens.double()
    likeness = torch.cosine_similarity(tokens, tokens.mean(dim=1, keepdim=True), dim=2)
    gaps = likeness.masked_fill(kept, 1).amin(dim=1) - likeness.masked_fill(~kept, -1).amax(dim=1)
    return bool(gaps.min() >= -tolerance(*lengths))
