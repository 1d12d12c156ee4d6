"""What the drawing tools share: images as arrays, frames, and figures written whole."""
from pathlib import Path

import matplotlib
import numpy as np
from torchvision.transforms.v2.functional import resize
from yacs.config import CfgNode

from demo_sdtps.config.files import atomic_write
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.images import decode_triplet
from demo_sdtps.engine.evaluation.protocol import exclude_key

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt

HIT, MISS, QUERY = "#2a9d3a", "#d1242f", "#3b6fd4"


def images(cfg: CfgNode, sample: Sample) -> list[np.ndarray]:
    """The three images of a triplet at the network's size, uint8 (H, W, 3). Raises `UserError`."""
    size = list(cfg.INPUT.SIZE_TEST)
    return [resize(image, size, antialias=True).permute(1, 2, 0).numpy() for image in decode_triplet(sample.paths)]


def label(cfg: CfgNode, sample: Sample) -> str:
    """A sample's identity, and its camera (from 1) or, where the protocol goes by them, its scene."""
    where = f"scene {sample.scene}" if exclude_key(cfg) == "scene" else f"camera {sample.camera + 1}"
    return f"id {sample.identity}, {where}"


def room(cfg: CfgNode, side: float) -> tuple[float, float]:
    """(width, height) in inches for an image of the network's size whose longer side is `side`."""
    height, width = (side * length / max(cfg.INPUT.SIZE_TEST) for length in cfg.INPUT.SIZE_TEST)
    return width, height


def spread(total: int, count: int) -> list[int]:
    """`count` places spread evenly over `total`, away from both ends; all where there are no more."""
    return list(range(total)) if count >= total else [(place + 1) * total // (count + 1) for place in range(count)]


def frame(axis: plt.Axes, colour: str, width: float = 3.0) -> None:
    """Put a coloured frame around an image."""
    for spine in axis.spines.values():
        spine.set(visible=True, color=colour, linewidth=width)


def hide_ticks(axis: plt.Axes) -> None:
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def save(figure: plt.Figure, path: Path) -> Path:
    """Write the figure as PNG, whole or not at all, and close it."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path
