"""What demo-sdtps slim-curve does: a checkpoint slimmed without training, mAP against operations."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config import UserError, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.evaluation.extraction import load_model_and_data
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.evaluation.protocol import TestData, evaluate_reid, make_test_data
from demo_sdtps.evaluation.tables import PATTERN_NAMES, reid_caption, reid_record
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.checkpoints.loading import load_weights
from demo_sdtps.reports.figures import NEUTRAL, ink, kind, name_points, np, plt, save
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.progress import progress

loading = logging.getLogger(load_weights.__module__)
CURVE_SETTINGS = (
    ((1 / 3,), (0.65,)),
    ((1 / 3,), (0.5,)),
    ((1 / 6, 1 / 2), (0.6, 0.6)),
    ((1 / 6, 1 / 2), (0.45, 0.45)),
    ((0, 1 / 3), (0.4, 0.5)),
)
"""Depths after which patches are dropped, and what is kept of them there: about 0.75, 0.65, 0.5, 0.4 and 0.3 of the
operations."""

AS_TRAINED = "the checkpoint's own"
HEADER = f"{'score':18}{'blocks':>10}{'keep':>12}{'operations':>12}{'mAP':>8}{'Rank-1':>8}  of {{}}"
Setting = tuple[str, list[int], list[float]]
"""MODEL.SLIM_SCORE, MODEL.SLIM_BLOCKS and MODEL.SLIM_KEEP."""


class CurvePoint(NamedTuple):
    """A setting of slimming and what it does; mAP and Rank-1 in [0, 1], of TEST.RETURN_PATTERN."""

    score: str  # '' for the dense model
    blocks: list[int]
    keep: list[float]
    operations: float  # of the backbone, over those of the dense model
    mAP: float
    rank1: float
    own: bool = False  # whether the checkpoint was trained with it

    def __str__(self) -> str:
        return f"{self.keep} after {self.blocks}"


def evaluate_settings(cfg: CfgNode, arguments: argparse.Namespace) -> None:
    """Evaluate the dense model and every setting, print a row of each and write the files."""
    if cfg.TEST.MISS == "all":
        raise UserError(
            "TEST.MISS is 'all', but a curve is that of one case; set it to 'nothing' or one such as 'rn'."
        )
    off: dict[str, object] = {"MODEL.SLIM_BLOCKS": [], "MODEL.SLIM_KEEP": []}
    dense, splits = load_model_and_data(with_values(cfg, off))
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    whole = count_macs(cfg, dense)["backbone"]
    caption = reid_caption(cfg, data)
    chosen = settings(len(dense.backbone.vit.blocks), arguments.blocks, arguments.keep)
    trained = (cfg.MODEL.SLIM_SCORE, list(cfg.MODEL.SLIM_BLOCKS), list(cfg.MODEL.SLIM_KEEP))
    cases: list[Setting] = [trained] if cfg.MODEL.SLIM_BLOCKS else []
    others = [(score, *setting) for score in arguments.scores for setting in chosen]
    cases += [case for case in others if case != trained]
    # a score that the checkpoint has no weights of is refused before anything is evaluated
    for case in cases:
        slim_model(cfg, *case)
    about = {"caption": caption, "return_pattern": cfg.TEST.RETURN_PATTERN}
    points: list[CurvePoint] = []

    def add(point: CurvePoint) -> None:
        """Each point is kept and printed as it comes: many take hours."""
        points.append(point)
        if arguments.json:
            write_json(arguments.json, {**about, "points": [each._asdict() for each in points]})
        print_lines(row(point))

    print_lines(caption, HEADER.format(PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]))
    add(CurvePoint("", [], [], 1.0, *measure(cfg, dense, data)))
    for case in progress(cases, "evaluating", unit="setting"):
        model = slim_model(cfg, *case)
        macs = count_macs(cfg, model)
        operations = (macs["backbone"] + macs["slimming"]) / whole
        mean, rank1 = measure(cfg, model, data)
        score, blocks, keep = case
        add(CurvePoint(score, blocks, keep, operations, mean, rank1, case == trained))
    if arguments.output:
        draw(points, caption, cfg, arguments.output)
    print_lines(*filter(None, (arguments.json, arguments.output)))


def settings(
    depth: int, blocks: Sequence[list[int]] | None, keep: Sequence[float] | None
) -> list[tuple[list[int], list[float]]]:
    """MODEL.SLIM_BLOCKS and MODEL.SLIM_KEEP of each setting, for a backbone of `depth` blocks."""
    default = [
        (sorted({round(depth * place) for place in places}), shares)
        for places, shares in CURVE_SETTINGS
    ]
    if blocks is None and keep is None:
        return [(places, list(shares[: len(places)])) for places, shares in default]
    chosen, shares = blocks or [places for places, _ in default[::2]], keep or (0.65, 0.5)
    return [(places, [value] * len(places)) for places in chosen for value in shares]


def slim_model(cfg: CfgNode, score: str, blocks: list[int], keep: list[float]) -> DeMo:
    """The checkpoint's model with slimming."""
    values = {"MODEL.SLIM_BLOCKS": blocks, "MODEL.SLIM_KEEP": keep, "MODEL.SLIM_SCORE": score}
    loading.disabled = True  # the dense model's has warned
    try:
        return load_model_and_data(with_values(cfg, values))[0]
    finally:
        loading.disabled = False


def measure(cfg: CfgNode, model: DeMo, data: TestData) -> tuple[float, float]:
    """mAP and Rank-1 of TEST.RETURN_PATTERN."""
    (rankings,) = evaluate_reid(cfg, model, data).values()
    record = reid_record(rankings)[str(cfg.TEST.RETURN_PATTERN)]
    return record["mAP"], record["Rank-1"]


def row(point: CurvePoint) -> str:
    """A line of the table, under HEADER."""
    blocks, keep = (",".join(map(str, values)) or "–" for values in (point.blocks, point.keep))
    operations, mean, rank1 = (100 * share for share in (point.operations, point.mAP, point.rank1))
    line = f"{point.score or 'dense':18}{blocks:>10}{keep:>12}{operations:11.1f}%{mean:8.1f}{rank1:8.1f}"
    return f"{line}  {AS_TRAINED}" if point.own else line


def draw(points: Sequence[CurvePoint], caption: str, cfg: CfgNode, path: Path) -> Path:
    """mAP over the share of the operations, a curve for each score, whose points have the names of their settings."""
    figure, axes = plt.subplots(figsize=(9, 6.5))
    dense, *slimmed = ((100 * point.operations, 100 * point.mAP, point) for point in points)
    scores = list(dict.fromkeys(point.score for *_, point in slimmed if not point.own))
    for number, score in enumerate(scores):
        curve = sorted(place[:2] for place in [dense, *slimmed] if place[2].score in ("", score))
        axes.plot(*zip(*curve, strict=True), label=score, **kind(number))
    axes.axhline(dense[1], color=NEUTRAL, linestyle="--", linewidth=1, label="dense")
    for *place, point in slimmed:
        if point.own:
            text = f"{point.score}, {AS_TRAINED}: {point!s}"
            axes.plot(*place, "*", color=ink(), markersize=14, label=text)
    axes.set_xlabel("operations of the backbone against the dense model, %")
    axes.set_ylabel(f"mAP of {PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]}, %")
    figure.suptitle(caption, fontsize=8)
    # below the curves, which then pass through no text
    figure.legend(loc="outside lower center", ncols=2)
    # the others share the settings of the first
    named = [one for one in slimmed if one[2].score in scores[:1] and not one[2].own]
    places = np.array([place[:2] for place in named]).reshape(-1, 2)
    name_points(axes, places, [str(point) for *_, point in named], gap=8)
    return save(figure, path)
