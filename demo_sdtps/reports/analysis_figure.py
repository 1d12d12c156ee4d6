"""The figure of tools/analyse.py: the numbers behind an evaluation, and its worst queries."""

from pathlib import Path
from typing import Any

import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.evaluation.extraction import CASES
from demo_sdtps.evaluation.protocol import TestData
from demo_sdtps.evaluation.tables import PATTERN_NAMES
from demo_sdtps.reports.analysis import Analysis
from demo_sdtps.reports.embedding import draw_points, name_groups
from demo_sdtps.reports.figures import draw_matrix, np, plt, room, save
from demo_sdtps.reports.palette import MATCH, NEUTRAL, PATTERNS, WRONG
from demo_sdtps.reports.ranks import draw_list

ONE_CASE = ["cameras", "cameras", "distances", "distances"]
PANELS: list[list[Any]] = [
    ["missing", "missing", "cameras", "distances"],
    ["identities"] * 4,
    ["PCA", "PCA", "t-SNE", "t-SNE"],
]
WIDTH, WORST, NEAREST = 18.0, 4, 3  # inches; the worst queries, each with its nearest


def draw_analysis(cfg: CfgNode, analysis: Analysis, data: TestData, title: str, path: Path) -> Path:
    """All but the other rank lists, in one figure."""
    columns = WORST * (1 + NEAREST)
    width, height = room(cfg, 1)
    rows = 13.5, 1.2 + len(cfg.MODEL.MODALITIES) * height / width * WIDTH / columns
    figure = plt.figure(figsize=(WIDTH, sum(rows)))
    above, below = figure.subfigures(2, 1, height_ratios=rows)  # type: ignore[misc]  # an array of two
    has_cases = len(analysis.records) > 1
    panels = PANELS if has_cases else [ONE_CASE, *PANELS[1:]]
    axes = above.subplot_mosaic(panels, height_ratios=(5, 3, 5))
    if has_cases:
        _draw_records(axes["missing"], analysis)
    cameras = [str(camera + 1) for camera in analysis.cameras.cameras]
    draw_matrix(axes["cameras"], analysis.cameras.mAP, cameras, unknown="no pair")
    names = {"xlabel": "camera of the gallery", "ylabel": "camera of the query"}
    axes["cameras"].set(title="mAP by camera, %", **names)
    _draw_distances(axes["distances"], analysis)
    _draw_identities(axes["identities"], analysis)
    identities = data.labels("identity", torch.tensor(analysis.points)).numpy()
    for method, places in analysis.embeddings.items():
        draw_points(axes[method], places, identities)
        axes[method].set_title(f"{method} of the features, by identity")
    below.suptitle(
        f"the worst queries by average precision (AP) and their {NEAREST} nearest: ✓ match, ✗ another identity"
    )
    for query, panel in zip(analysis.worst, below.subfigures(1, WORST), strict=False):
        precision, first = (values[query] for values in analysis.scores)
        text = f"query: AP {100 * precision:.1f} %\nfirst hit at rank {first}"
        row, sample = panel.subplots(1, 1 + NEAREST), int(data.query[query])
        draw_list(cfg, row, data, sample, text, analysis.rank_lists[query])
    figure.suptitle(title)
    for method, places in analysis.embeddings.items():
        name_groups(axes[method], places, identities)
    return save(figure, path)


def _draw_records(axis: plt.Axes, analysis: Analysis) -> None:
    """mAP of every return pattern in every case of missing modalities."""
    for number, (pattern, name) in enumerate(PATTERN_NAMES.items()):
        values = [100 * record[str(pattern)]["mAP"] for record in analysis.records.values()]
        places = np.arange(len(values)) + 0.27 * (number - 1)
        bars = axis.bar(places, values, 0.25, label=name, color=PATTERNS[pattern])
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    cases = [
        " and ".join(name for name in MODALITIES if name in CASES[case]) or "nothing"
        for case in analysis.records
    ]
    axis.set_xticks(np.arange(len(cases)), cases)
    axis.set_title("mAP by missing modalities and return pattern")
    axis.set(xlabel="missing", ylabel="%", ylim=(0, 100))
    axis.legend()


def _draw_identities(axis: plt.Axes, analysis: Analysis) -> None:
    scores = analysis.identities
    axis.bar(np.arange(len(scores)), [100 * score.mAP for score in scores], color=NEUTRAL)
    # Names of many identities would cover each other.
    names = [str(score.identity) for score in scores] if len(scores) <= 60 else []
    axis.set_xticks(np.arange(len(names)), names, rotation=90, fontsize=8)
    axis.set(title="mAP of each identity", xlabel="identity", ylabel="%", ylim=(0, 100))
    axis.margins(x=0.01)


def _draw_distances(axis: plt.Axes, analysis: Analysis) -> None:
    """Shares in percent, since there are far more negatives."""
    edges, positives, negatives = analysis.distances
    kinds = ((positives, "matches", MATCH), (negatives, "other identities", WRONG))
    for counts, name, colour in kinds:
        total = counts.sum()
        shares, text = 100 * counts / max(1, total), f"{total:,} {name}"
        axis.stairs(shares, edges, fill=True, alpha=0.5, color=colour, label=text)
    axis.set(title="distances of queries to the gallery", xlabel="distance", ylabel="%")
    axis.legend()
