"""Helpers of the drawing tools: images as arrays, frames, and saving figures atomically."""
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from torchvision.transforms.v2.functional import resize
from yacs.config import CfgNode

from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.images import decode_triplet
from demo_sdtps.evaluation.protocol import exclude_key
from demo_sdtps.runtime.files import atomic_write

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt

BLANK = 245  # grey value in place of a missing image
HIT, MISS, QUERY = "#2a9d3a", "#d1242f", "#3b6fd4"


def images(cfg: CfgNode, sample: Sample) -> list[np.ndarray]:
    """The images of a triplet at INPUT.SIZE_TEST, each uint8 (H, W, 3), grey for one that is absent. Raises `UserError` where
    one cannot be read."""
    size = list(cfg.INPUT.SIZE_TEST)
    blank = np.full((*size, 3), BLANK, np.uint8)
    return [blank if image is None else resize(image, size, antialias=True).permute(1, 2, 0).numpy()
            for image in decode_triplet(sample.paths, cfg.MODEL.MODALITIES)]


def label(cfg: CfgNode, sample: Sample) -> str:
    """A sample's identity, and its camera, from 1, or its scene, whichever the protocol excludes by; its file where it has no
    labels."""
    if sample.identity == UNKNOWN:
        return Path(sample.files[0]).name
    where = f"scene {sample.scene}" if exclude_key(cfg) == "scene" else f"camera {sample.camera + 1}"
    return f"id {sample.identity}, {where}"


def room(cfg: CfgNode, side: float) -> tuple[float, float]:
    """(width, height) in inches of an image of INPUT.SIZE_TEST whose longer side is `side`."""
    height, width = (side * length / max(cfg.INPUT.SIZE_TEST) for length in cfg.INPUT.SIZE_TEST)
    return width, height


def spread(total: int, count: int) -> list[int]:
    """`count` indices spread evenly over `total`, away from both ends; all indices where `count` is not smaller."""
    return list(range(total)) if count >= total else [index * total // (count + 1) for index in range(1, count + 1)]


def hide_ticks(axis: plt.Axes) -> None:
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def draw_matrix(axis: plt.Axes, shares: np.ndarray, names: Sequence[str], unknown: str = "") -> None:
    """A heat map of shares (n, n) in percent: queries in rows, the gallery in columns; `unknown` is written for NaN."""
    axis.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    axis.set_facecolor("0.9")  # of NaN
    for (row, column), value in np.ndenumerate(shares):
        colour = "white" if value > 0.6 else "black"
        axis.text(column, row, unknown if np.isnan(value) else f"{100 * value:.0f}", ha="center", va="center", fontsize=8,
                  color=colour)
    axis.set_xticks(np.arange(len(names)), names)
    axis.set_yticks(np.arange(len(names)), names)


def save(figure: plt.Figure, path: Path) -> Path:
    """Write the figure as PNG by `atomic_write`, and close it."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path
