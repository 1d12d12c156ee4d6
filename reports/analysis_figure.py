"""The figure of tools/analyse.py."""
from pathlib import Path
from typing import Any

import torch

from demo_sdtps.evaluation.protocol import TestData
from demo_sdtps.evaluation.tables import PATTERN_NAMES
from demo_sdtps.reports.analysis import Analysis
from demo_sdtps.reports.figures import HIT, MISS, draw_matrix, np, plt, save

PANELS: list[list[Any]] = [["missing", "missing", "cameras", "distances"], ["identities"] * 4, ["PCA", "PCA", "t-SNE", "t-SNE"]]


def draw_analysis(found: Analysis, data: TestData, title: str, path: Path) -> Path:
    """Everything but the rank lists and the worst queries, in one figure."""
    figure, axes = plt.subplot_mosaic(PANELS, figsize=(18, 16), layout="constrained")
    _draw_records(axes["missing"], found)
    _draw_cameras(axes["cameras"], found)
    _draw_distances(axes["distances"], found)
    scores = [100 * score.mAP for score in found.identities]
    axes["identities"].bar(np.arange(len(scores)), scores, color="#3b6fd4")
    # Names of many identities would cover each other.
    names = [str(score.identity) for score in found.identities] if len(scores) <= 60 else []
    axes["identities"].set_xticks(np.arange(len(names)), names, rotation=90, fontsize=8)
    axes["identities"].set(title="mAP of each identity", xlabel="identity", ylabel="%", ylim=(0, 100))
    identity = data.labels("identity", torch.tensor(found.points))
    order = identity.unique(return_inverse=True)[1].numpy()
    for method, places in found.embeddings.items():
        axes[method].scatter(places[:, 0], places[:, 1], c=order, cmap="nipy_spectral", s=12)
        axes[method].set(title=f"{method} of the features, a colour per identity", xticks=[], yticks=[])
    figure.suptitle(title)
    return save(figure, path)


def _draw_records(axis: plt.Axes, found: Analysis) -> None:
    """mAP of every return pattern in every case of missing modalities."""
    for number, (pattern, name) in enumerate(PATTERN_NAMES.items()):
        values = [100 * record[str(pattern)]["mAP"] for record in found.records.values()]
        bars = axis.bar(np.arange(len(values)) + 0.27 * (number - 1), values, 0.25, label=name)
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    axis.set_xticks(np.arange(len(found.records)), found.records)
    axis.set(title="mAP by missing modalities and return pattern", xlabel="missing", ylabel="%", ylim=(0, 100))
    axis.legend()


def _draw_cameras(axis: plt.Axes, found: Analysis) -> None:
    cameras, matrix = found.cameras
    draw_matrix(axis, matrix, [str(camera + 1) for camera in cameras])
    axis.set(title="mAP by camera, %", xlabel="camera of the gallery", ylabel="camera of the query")


def _draw_distances(axis: plt.Axes, found: Analysis) -> None:
    """Shares in percent, since there are far more negatives."""
    edges, *counts = found.distances
    for values, name, colour in zip(counts, ("positives", "negatives"), (HIT, MISS), strict=True):
        total = values.sum()
        axis.stairs(100 * values / max(1, total), edges, fill=True, alpha=0.5, color=colour, label=f"{total:,} {name}")
    axis.set(title="distances of positives and negatives", xlabel="distance", ylabel="%")
    axis.legend()
