"""Features as points of a plane."""
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.evaluation.embedding import METHODS
from demo_sdtps.evaluation.tables import PATTERN_NAMES, options
from demo_sdtps.reports.figures import np, plt, save

LABELS = ("identity", "camera")
TAB20 = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
COLOURS, MARKERS = (*TAB20[::2], *TAB20[1::2]), "osD^vP*X<>ph"  # dark colours first: neighbours in the map are much alike
MOST_IN_LEGEND, MOST_NAMED = 12, 60


def draw_embedding(cfg: CfgNode, points: np.ndarray, samples: Sequence[Sample], method: str, path: Path) -> Path:
    """A panel of the points (n, 2) of the samples for each of LABELS, by which they are coloured; samples without labels by the
    modalities that they have."""
    labels = LABELS if samples[0].identity != UNKNOWN else ("modalities",)
    figure, axes = plt.subplots(1, len(labels), figsize=(7.5 * len(labels), 6), squeeze=False)
    for axis, label in zip(axes[0], labels, strict=True):
        values = np.array(["+".join(sample.modalities) if label == "modalities" else getattr(sample, label)
                           for sample in samples])
        distinct = np.unique(values)
        for place, value in enumerate(distinct):
            # More labels than colours: the marker changes too.
            marker = MARKERS[place // len(COLOURS) % len(MARKERS)]
            own = points[values == value]
            name = str(value + 1 if label == "camera" else value)  # as in file names
            axis.scatter(*own.T, s=14, color=COLOURS[place % len(COLOURS)], marker=marker, linewidths=0, alpha=0.8, label=name)
            if MOST_IN_LEGEND < len(distinct) <= MOST_NAMED:
                axis.annotate(name, np.median(own, axis=0), fontsize=7, ha="center", va="center")
        axis.set(title=f"by {label} ({len(distinct)})", xticks=[], yticks=[])
        if len(distinct) <= MOST_IN_LEGEND:
            axis.legend(fontsize=8, title=label)
    number, _, name = PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    figure.suptitle(f"{METHODS[method]} of {len(samples)} samples of {cfg.DATASETS.NAMES}, return pattern {number} ({name})"
                    f"{options(cfg)}")
    figure.tight_layout()
    return save(figure, path)
