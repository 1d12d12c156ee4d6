"""Features as points of a plane."""

from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.evaluation.embedding import METHODS
from demo_sdtps.evaluation.tables import PATTERN_NAMES, options
from demo_sdtps.reports.figures import kind, name_points, np, plt, save

MOST_IN_LEGEND, MOST_NAMED = 12, 60


def draw_embedding(
    cfg: CfgNode, points: np.ndarray, samples: Sequence[Sample], method: str, path: Path
) -> Path:
    """A panel of the points (n, 2) of the samples, coloured by identity, and one by camera; or, without labels, one by the
    modalities that they have."""
    labels = {
        "identity": np.array([sample.identity for sample in samples]),
        "camera": np.array([sample.camera + 1 for sample in samples]),  # as in file names
    }
    if samples[0].identity == UNKNOWN:
        labels = {"modalities": np.array(["+".join(sample.modalities) for sample in samples])}
    inches = (7.5 * len(labels), 6)
    figure, axes = plt.subplots(1, len(labels), figsize=inches, squeeze=False)
    for axis, (label, values) in zip(axes[0], labels.items(), strict=True):
        draw_points(axis, points, values)
        distinct = np.unique(values)
        axis.set_title(f"by {label} ({len(distinct)})")
        if len(distinct) <= MOST_IN_LEGEND:
            axis.legend(title=label, loc="center left", bbox_to_anchor=(1, 0.5))
    number, _, name = PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    figure.suptitle(
        f"{METHODS[method]} of {len(samples)} samples of {cfg.DATASETS.NAMES}, return pattern {number} ({name})"
        f"{options(cfg)}"
    )
    for axis, values in zip(axes[0], labels.values(), strict=True):
        name_groups(axis, points, values)
    return save(figure, path)


def draw_points(axis: plt.Axes, points: np.ndarray, values: np.ndarray) -> None:
    """The points (n, 2) with a colour and marker for each of the values (n,)."""
    for place, value in enumerate(np.unique(values)):
        style = {**kind(place), "s": 16, "linewidths": 0, "alpha": 0.8, "label": str(value)}
        axis.scatter(*points[values == value].T, **style)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(True)


def name_groups(axis: plt.Axes, points: np.ndarray, values: np.ndarray) -> None:
    """The values (n,) at the medians of their points, unless they are few, which a legend names, or too many."""
    distinct = np.unique(values)
    if MOST_IN_LEGEND < len(distinct) <= MOST_NAMED:
        medians = np.array([np.median(points[values == value], axis=0) for value in distinct])
        name_points(axis, medians, list(map(str, distinct)))
