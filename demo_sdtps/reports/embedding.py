"""Features as points of a plane."""

from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.evaluation.analysis import METHODS
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
    figure, axes = plt.subplots(1, len(labels), figsize=(7.5 * len(labels), 6), squeeze=False)
    number, _, name = PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    figure.suptitle(
        f"{METHODS[method]} of {len(samples)} samples of {cfg.DATASETS.NAMES}, return pattern {number} ({name})"
        f"{options(cfg)}"
    )
    named = []
    for axis, (label, values) in zip(axes[0], labels.items(), strict=True):
        distinct = np.unique(values)
        for place, value in enumerate(distinct):
            style = {**kind(place), "s": 16, "linewidths": 0, "alpha": 0.8, "label": str(value)}
            axis.scatter(*points[values == value].T, **style)
        axis.set(xticks=[], yticks=[], title=f"by {label} ({len(distinct)})")
        axis.spines[:].set_visible(True)
        if len(distinct) <= MOST_IN_LEGEND:
            axis.legend(title=label, loc="center left", bbox_to_anchor=(1, 0.5))
        elif len(distinct) <= MOST_NAMED:
            medians = [np.median(points[values == value], axis=0) for value in distinct]
            named.append((axis, np.array(medians), list(map(str, distinct))))
    for group in named:  # when all else is drawn
        name_points(*group)
    return save(figure, path)
