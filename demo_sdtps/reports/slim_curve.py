"""What demo-sdtps slim-curve does: a checkpoint with token pruning that it was not trained with, mAP against operations."""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config import with_values
from demo_sdtps.config.common import print_lines
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.evaluation.protocol import evaluate_reid, load_model_and_data, make_test_data
from demo_sdtps.evaluation.tables import PATTERN_NAMES, reid_caption
from demo_sdtps.reports.figures import COLOURS, kind, plt, save
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.progress import progress

DEPTHS = ((1 / 3,), (1 / 6, 1 / 2), (0, 1 / 3))
"""Parts of the backbone's blocks after which patches are dropped by default."""
ROW = "{:18}{:>10}{:>8}{:>12}{:>8}{:>8}"


def evaluate_settings(cfg: CfgNode, arguments: argparse.Namespace) -> None:
    """Evaluate the dense model and every score with every setting, print a row of each as it comes, and write the files."""
    off: dict[str, object] = {"MODEL.SLIM_BLOCKS": [], "MODEL.SLIM_KEEP": []}
    dense, splits = load_model_and_data(with_values(cfg, off))
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    depth, whole = len(dense.backbone.vit.blocks), count_macs(cfg, dense)["backbone"]
    blocks = arguments.blocks or [[round(depth * place) for place in places] for places in DEPTHS]
    settings = list(product(arguments.scores, blocks, arguments.keep))
    caption, pattern = reid_caption(cfg, data), cfg.TEST.RETURN_PATTERN
    content: dict[str, Any] = {"caption": caption, "return_pattern": pattern, "points": []}
    print_lines(f"{caption}, return pattern {PATTERN_NAMES[pattern]}")
    print_lines(ROW.format("score", "blocks", "keep", "operations", "mAP", "Rank-1"))
    for score, places, keep in progress([("", [], 1.0), *settings], "evaluating", unit="setting"):
        model = dense
        if score:
            slim = {"MODEL.SLIM_BLOCKS": places, "MODEL.SLIM_KEEP": [keep] * len(places)}
            slim_cfg = with_values(cfg, {**slim, "MODEL.SLIM_SCORE": score})
            model, _ = load_model_and_data(slim_cfg)
        macs = count_macs(cfg, model)
        share = (macs["backbone"] + macs["slimming"]) / whole
        # of the complete triplets where TEST.MISS is all
        ranking = next(iter(evaluate_reid(cfg, model, data).values()))[pattern]
        mean, rank1 = ranking.mAP, ranking.rank(1)
        point = {"score": score, "blocks": places, "keep": keep, "operations": share}
        content["points"].append(point | {"mAP": mean, "rank1": rank1})
        if arguments.json:
            write_json(arguments.json, content)
        percents = (f"{100 * value:.1f}" for value in (keep, share, mean, rank1))
        print_lines(ROW.format(score or "dense", str(places), *percents))
    if arguments.output:
        draw(content["points"], caption, cfg, arguments.output)
    print_lines(*filter(None, (arguments.json, arguments.output)))


def draw(points: Sequence[dict[str, Any]], caption: str, cfg: CfgNode, path: Path) -> Path:
    """mAP over the share of the operations, a curve for each score, whose points are named by their settings."""
    figure, axes = plt.subplots(figsize=(9, 6.5))
    for number, score in enumerate(dict.fromkeys(point["score"] for point in points[1:])):
        curve = [point for point in points if point["score"] in ("", score)]
        places = [(100 * point["operations"], 100 * point["mAP"]) for point in curve]
        axes.plot(*zip(*sorted(places), strict=True), label=score, **kind(number))
        for point, place in zip(curve[1:], places[1:], strict=True):
            text = f"{point['keep']} after {point['blocks']}"
            axes.annotate(text, place, (6, 4), textcoords="offset points", fontsize=7)
    dense = 100 * points[0]["mAP"]
    axes.axhline(dense, color=COLOURS["plain"], linestyle="--", linewidth=1, label="dense")
    axes.set_xlabel("operations of the backbone against the dense model, %")
    axes.set_ylabel(f"mAP of {PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]}, %")
    figure.suptitle(caption, fontsize=8)
    # below the curves, which then pass through no text
    figure.legend(loc="outside lower center", ncols=2)
    return save(figure, path)
