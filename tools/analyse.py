"""The numbers behind an evaluation: python tools/analyse.py --weight W --json X.json --output X.png"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

from typing import Any

import torch

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import add_output, add_return_pattern, config_parser, parse, print_lines, run
from demo_sdtps.evaluation.command import load_model_and_data, weight_flag
from demo_sdtps.evaluation.extraction import CASES, extract_features
from demo_sdtps.evaluation.protocol import TestData, make_test_data
from demo_sdtps.evaluation.tables import PATTERN_NAMES, missing_table, reid_caption
from demo_sdtps.reports.analysis import Analysis, add_limits, analyse, analysed_case, as_json
from demo_sdtps.reports.figures import HIT, MISS, draw_matrix, np, plt, save
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import write_json

PANELS: list[list[Any]] = [["missing", "missing", "cameras", "distances"], ["identities"] * 4, ["PCA", "PCA", "t-SNE", "t-SNE"]]


def main() -> None:
    parser = config_parser(
        "Write the numbers behind an evaluation: mAP and Rank-1/5/10 in every case of missing modalities, average precision of "
        "every query and identity, mAP by camera of the query and of the gallery, rank lists, the worst queries, distances of "
        "positives and negatives, and the features in two dimensions (PCA, t-SNE). docs/report.md describes the file.",
        checkpoint=weight_flag())
    add_return_pattern(parser, "features that are analysed")
    add_output(parser, "--json", ".json", help="write the numbers to this file")
    add_output(parser, "--output", ".png", help="draw them into this file")
    add_limits(parser, "the file")
    arguments, cfg = parse(parser)
    if not (arguments.json or arguments.output):
        raise UserError("There is nothing to write: give --json X.json for the numbers, --output X.png for plots, or both.")
    check_extra("tools/analyse.py", "report", {"sklearn": "scikit-learn"})
    analysed_case(cfg)
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    features = dict(zip(CASES, extract_features(cfg, model, data.loader, list(CASES.values())), strict=True))
    found = analyse(cfg, data, features, arguments.queries, arguments.points)
    caption = reid_caption(cfg, data)
    if arguments.json:
        write_json(arguments.json, {"caption": caption, **as_json(cfg, data, found)})
    if arguments.output:
        about = f"but for the first plot: return pattern {PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]}"
        draw_analysis(found, data, f"{caption}\n{about}", arguments.output)
    print_lines(caption, *missing_table(found.records).splitlines(), *filter(None, (arguments.json, arguments.output)))


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


if __name__ == "__main__":
    run(main)
