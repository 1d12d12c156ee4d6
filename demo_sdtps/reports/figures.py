"""What the pictures share: colours, each with one meaning, style, images as arrays, heat maps, labels, saving atomically."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.patheffects import withStroke
from torchvision.transforms.v2.functional import resize
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.images import decode_triplet
from demo_sdtps.datasets.loaders import image_scales
from demo_sdtps.evaluation.protocol import exclude_key
from demo_sdtps.runtime.files import atomic_write

# Colours of a group differ for colour-blind readers too.
PATTERNS = dict(zip(RETURN_PATTERNS, ("#56b4e9", "#e69f00", "#0072b2"), strict=True))
MODALITY = dict(zip(MODALITIES, ("#882255", "#999999", "#ddcc77"), strict=True))
MATCH, WRONG = "#009e73", "#d55e00"
SERIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7010e0")
"""Of anything else: identities, variants, runs."""
# of what has no kind, of queries, and of a cell without a number
NEUTRAL, TEXT, EMPTY = ("#64748b", "#000000", "#eeeeee")
# cover of a dropped patch: a colour that is visible on a black night image too
DROPPED, OPACITY = ((96, 88, 148), 0.75)
HEAT, SHARES = "viridis", "Blues"  # colour maps: of values over an image, and of percentages

AS_DATA = {
    "patterns": list(PATTERNS.values()),
    "match": MATCH,
    "wrong": WRONG,
    "series": SERIES,
    "plain": NEUTRAL,
    "dropped": [*DROPPED, OPACITY],
}
"""What the pages take of it."""

matplotlib.use("Agg")  # no screen is needed

plt.rcParams.update(
    {
        "axes.prop_cycle": plt.cycler(color=SERIES),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "font.size": 10,
        "axes.titlesize": 11,
        "figure.titlesize": 12,
        "text.color": TEXT,
        "figure.constrained_layout.use": True,
        "savefig.dpi": 110,
        "pdf.fonttype": 42,
        "svg.hashsalt": "demo_sdtps",
    }
)
BLANK = 160  # grey value in place of a missing image, seen on light and on dark pages
MARKERS = "osD^vP*X<>ph"
CHART = 3.2  # inches across of a chart beside images
CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}  # text at its place
COLOURED, GREY = 0.65, 0.7  # opacity of a heat map's colours, brightness of the image below


def dark() -> AbstractContextManager:
    """Figures made in it are for dark pages: light text, and nothing behind."""
    style: dict[Any, Any] = {**plt.style.library["dark_background"], "savefig.transparent": True}
    return plt.rc_context(style | {"axes.prop_cycle": plt.rcParams["axes.prop_cycle"]})


def ink() -> str:
    """The colour of text and of what has no other."""
    return plt.rcParams["text.color"]


def images(
    cfg: CfgNode, sample: Sample, modalities: Sequence[str] | None = None
) -> list[np.ndarray]:
    """The images of `modalities`, by default MODEL.MODALITIES, at INPUT.SIZE_TEST, each uint8 (H, W, 3), or grey."""
    placeholder = torch.full((3, 1, 1), BLANK, dtype=torch.uint8)
    triplet = decode_triplet(sample.paths, modalities or cfg.MODEL.MODALITIES, image_scales(cfg))
    shown = (placeholder if image is None else image for image in triplet)
    sized = (resize(image, list(cfg.INPUT.SIZE_TEST), antialias=True) for image in shown)
    return [image.permute(1, 2, 0).numpy() for image in sized]


def label(cfg: CfgNode, sample: Sample) -> str:
    """Identity, and camera, from 1, or scene, whichever the protocol excludes by; the file of a sample without labels."""
    if sample.identity == UNKNOWN:
        return Path(sample.files[0]).name
    by_scene = exclude_key(cfg) == "scene"
    where = f"scene {sample.scene}" if by_scene else f"camera {sample.camera + 1}"
    return f"id {sample.identity}, {where}"


def spread(total: int, count: int) -> list[int]:
    """`count` indices spread evenly over `total`, away from both ends; all indices where `count` is not smaller."""
    if count >= total:
        return list(range(total))
    return [index * total // (count + 1) for index in range(1, count + 1)]


def image_grid(
    cfg: CfgNode,
    rows: Sequence[Sequence[np.ndarray]],
    side: float,
    titles: Sequence[str] = (),
    labels: Sequence[str] = (),
    charts: int = 0,
) -> tuple[plt.Figure, np.ndarray]:
    """A figure of rows of images (H, W, 3), and its axes (rows, columns): columns under `titles`, rows with `labels`, one line
    for each part between commas, and behind the images the axes of `charts`. An image whose longer side is that of
    INPUT.SIZE_TEST is `side` inches long."""
    columns, inches = max(map(len, rows)), side / max(cfg.INPUT.SIZE_TEST)
    height, width = (0.2 + inches * length for length in rows[0][0].shape[:2])
    widths = [width] * columns + [CHART] * charts
    breaks = max((title.count("\n") for title in titles), default=0)
    size = sum(widths), height * len(rows) + 1 + 0.3 * breaks
    shape = len(rows), len(widths)
    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False, width_ratios=widths)
    for axis in axes[:, :columns].flat:  # of which a short row leaves some empty
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    for row, row_images in zip(axes, rows, strict=True):
        for axis, image in zip(row, row_images, strict=False):
            axis.imshow(image)
    for axis, title in zip(axes[0], titles, strict=False):
        axis.set_title(title, fontsize=9)
    for axis, text in zip(axes[:, 0], labels, strict=False):
        axis.set_ylabel(text.replace(", ", "\n"), fontsize=8)
    return figure, axes


def kind(place: int) -> dict[str, Any]:
    """Colour and marker of one of many: a pair of its own for each of 84."""
    return {"color": SERIES[place % len(SERIES)], "marker": MARKERS[place % len(MARKERS)]}


def heat_map(
    image: np.ndarray, values: torch.Tensor, limits: tuple[float, float] | None = None
) -> np.ndarray:
    """The image (H, W, 3), grey, with the colours of values (rows, columns) in `limits`, by default their own; NaN: without."""
    large = F.interpolate(values.float()[None, None], image.shape[:2])[0, 0].numpy()
    scaled = plt.Normalize(*limits or (None, None))(np.ma.masked_invalid(large))
    grey = GREY * image.mean(axis=2, keepdims=True) / 255
    colours = plt.get_cmap(HEAT)(scaled)[..., :3]
    return grey + COLOURED * ~np.isnan(large)[..., None] * (colours - grey)


def heat_bar(figure: plt.Figure, axes: np.ndarray, meaning: str, least: str = "lowest") -> None:
    """The colour bar of `heat_map`, below the axes."""
    colours = plt.cm.ScalarMappable(cmap=HEAT)
    bar = figure.colorbar(colours, ax=axes, location="bottom", aspect=40, pad=0.01, shrink=0.4)
    bar.set_ticks([0, 1], labels=[least, "highest"])
    bar.set_label(meaning)


def name_points(
    axis: plt.Axes, points: np.ndarray, names: Sequence[str], gap: float | None = None
) -> None:
    """Name the points (n, 2) of an axis over them, or `gap` pixels beside them: labels move up where they would cover each
    other, with lines to their points. To be called when all else is drawn."""
    line = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 4}
    halo = [withStroke(linewidth=2, foreground=plt.rcParams["axes.facecolor"])]
    style: dict[str, Any] = {"fontsize": 7, "path_effects": halo, "arrowprops": line, **CENTRED}
    pairs = zip(names, points, strict=True)
    texts = [axis.annotate(name, point, point, **style) for name, point in pairs]
    axis.figure.canvas.figure.draw_without_rendering()
    sizes = np.array([plt.Text.get_window_extent(text).size for text in texts])
    starts = axis.transData.transform(points)
    fixed = starts[:0]
    if gap is not None:  # to the right, where there is room, and above the curve through the points
        fixed = starts
        widths = gap + sizes[:, 0]
        fits = starts[:, 0] + widths < axis.bbox.x1
        beside = np.where(fits, widths, -widths) / 2
        starts = starts + np.stack([beside, np.full(len(sizes), gap)], axis=1)
    for text, start, place in zip(texts, starts, apart(starts, sizes, fixed), strict=True):
        text.set_position(tuple(axis.transData.inverted().transform(place)))
        text.arrow_patch.set_visible(place[1] - start[1] > 8)  # type: ignore[union-attr]  # it has one
        text.set_in_layout(False)  # which would move the axis under the labels


def apart(centres: np.ndarray, sizes: np.ndarray, fixed: np.ndarray) -> np.ndarray:
    """Boxes of `centres` and `sizes` (n, 2), moved up, the lowest first, until none covers another, nor a square at `fixed`."""
    order = len(fixed) + centres[:, 1].argsort(kind="stable")
    centres = np.concatenate([fixed, centres])
    sizes = np.concatenate([np.full_like(fixed, 10), sizes])
    done = np.arange(len(centres)) < len(fixed)
    for place in order:
        while (abs(centres - centres[place]) < (sizes + sizes[place]) / 2).all(axis=1)[done].any():
            centres[place, 1] += 1
        done[place] = True
    return centres[len(fixed) :]


def save(figure: plt.Figure, path: Path) -> Path:
    """Write the figure by `atomic_write`, in the format of the path's suffix, and close it."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], bbox_inches="tight")
    plt.close(figure)
    return path
