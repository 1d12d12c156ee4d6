"""What an evaluation shows: the numbers of demo-sdtps analyse; curves of a run, rank lists, features as points of a plane and
matrices of sets of modalities as figures."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import EMBEDDING_METHODS
from demo_sdtps.config.load import StoredText
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.evaluation import analysis, protocol, tables
from demo_sdtps.evaluation.analysis import embed
from demo_sdtps.evaluation.distances import Distances
from demo_sdtps.evaluation.extraction import CASES
from demo_sdtps.evaluation.metrics import Labels
from demo_sdtps.evaluation.protocol import CrossModal, TestData
from demo_sdtps.evaluation.tables import Record, options, reid_record
from demo_sdtps.modeling.checkpoints.loading import stored_config
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.reports import figures
from demo_sdtps.reports.figures import plt, spread
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.output import LAST

WORST, NEAREST = 20, 10  # queries of an analysis, and hits of each
IMAGE = "curves.png"
BEST = 10  # hits of a drawn query
MOST_IN_LEGEND, MOST_NAMED = 12, 60  # colours of points

# (samples, D) by case of missing modalities and return pattern
Features = Mapping[str, Mapping[int, torch.Tensor]]


def analysis_case(cfg: CfgNode) -> str:
    """The case of TEST.MISS by its name in `CASES`."""
    missing = missing_modalities(cfg.TEST.MISS)
    return next(name for name, case in CASES.items() if case == missing)


def analyse(
    cfg: CfgNode, data: protocol.TestData, features: Features, queries: int, points: int
) -> dict[str, Any]:
    """The content of an analysis (docs/getting_started.md): plain lists, dicts and numbers, with at most `queries` rank
    lists and `points` samples in two dimensions. All but the cases is of TEST.RETURN_PATTERN in the case of TEST.MISS."""
    cases = {case: rank_patterns(cfg, patterns, data) for case, patterns in features.items()}
    chosen = features[analysis_case(cfg)][cfg.TEST.RETURN_PATTERN]
    ranking = labelled_distances(cfg, chosen, data)
    scores = analysis.score_queries(*ranking)
    worst = analysis.worst_queries(scores.average_precision, min(WORST, queries)).tolist()
    others = sorted({*range(len(data.query))} - {*worst})
    chosen_others = [others[place] for place in spread(len(others), queries - len(worst))]
    listed = sorted(worst + chosen_others)
    nearest = analysis.nearest_samples(*ranking, np.array(listed), NEAREST)
    cameras, matrix = analysis.camera_matrix(*ranking)
    identities = analysis.score_identities(scores.average_precision, ranking[1].identity)
    histogram = analysis.distance_histogram(*ranking)
    gallery, shown = data.gallery.tolist(), spread(len(data.samples), points)
    shown_features = protocol.normalise(cfg, chosen[shown]).numpy()
    methods = progress(("pca", "tsne"), "features in two dimensions", unit="method")
    places = {
        EMBEDDING_METHODS[name]: embed(shown_features, name, cfg.SOLVER.SEED) for name in methods
    }
    named = ([hit._asdict() | {"sample": gallery[hit.sample]} for hit in hits] for hits in nearest)
    rank_lists = [{"query": q, "nearest": hits} for q, hits in zip(listed, named, strict=True)]
    each_query = zip(data.query.tolist(), *(values.tolist() for values in scores), strict=True)
    return {
        "weight": cfg.TEST.WEIGHT,
        "return_pattern": cfg.TEST.RETURN_PATTERN,
        "missing": analysis_case(cfg),
        "options": options(cfg).removeprefix(", "),
        "cases": cases,
        "samples": [vars(sample) for sample in data.samples],
        "queries": [
            {"sample": sample, "average_precision": number(precision), "first_match": rank}
            for sample, precision, rank in each_query
        ],
        "rank_lists": rank_lists,
        "worst_queries": worst,
        "camera_matrix": {
            "cameras": cameras,
            "mAP": [[*map(number, row)] for row in matrix.tolist()],
        },
        "identities": [score._asdict() for score in identities],
        "distances": {name: counts.tolist() for name, counts in histogram._asdict().items()},
        "scatter": {"samples": shown} | {name: rows.tolist() for name, rows in places.items()},
    }


def rank_patterns(
    cfg: CfgNode, features: Mapping[int, torch.Tensor], data: protocol.TestData
) -> Record:
    """The record of features (samples, D) by return pattern."""
    items = features.items()
    return reid_record(
        {name: protocol.rank_features(cfg, each, data, name) for name, each in items}
    )


def labelled_distances(
    cfg: CfgNode, features: torch.Tensor, data: protocol.TestData
) -> tuple[Distances, Labels, Labels]:
    """The first arguments of the functions of evaluation/analysis.py, by features (samples, D)."""
    return protocol.ranked_distances(cfg, features, data), *data.labels


def number(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if math.isnan(value) else value


def evaluated_run(folder: Path) -> list[dict]:
    """The records of a run's metrics.json."""
    records = tables.read_records(folder)
    if not tables.evaluated_records(records):
        raise UserError(
            f"The run {folder} has no {tables.METRICS} with evaluated epochs; train first, or give the OUTPUT_DIR of a "
            "training."
        )
    return records


def run_config(run: Path) -> StoredText:
    """The configuration of a finished run."""
    evaluated_run(run)
    return stored_config(run / LAST)


def draw_curves(records: list[dict], path: Path) -> Path:
    """Loss and accuracy on the left, mAP and Rank-1 per return pattern on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    trained = [record for record in records if None not in map(record.get, ("loss", "accuracy"))]
    epochs = [record["epoch"] for record in trained]
    left.plot(epochs, [record["loss"] for record in trained], color=figures.ink(), marker=".")
    left.set(xlabel="epoch", ylabel="training loss (solid)", title="training")
    accuracy = left.twinx()
    accuracies = [100 * record["accuracy"] for record in trained]
    accuracy.plot(epochs, accuracies, "--", color=figures.NEUTRAL, marker=".")
    accuracy.set_ylabel("training accuracy (%, dashed)", color=figures.NEUTRAL)
    accuracy.set_ylim(0, 100)
    accuracy.grid(False)

    tested = tables.evaluated_records(records)
    epochs = [record["epoch"] for record in tested]
    for pattern, colour in figures.PATTERNS.items():
        for name, style in (("mAP", "-"), ("Rank-1", ":")):
            values = [100 * record["patterns"][str(pattern)][name] for record in tested]
            text = f"{name}, {tables.PATTERN_NAMES[pattern]}"
            right.plot(epochs, values, style, color=colour, marker=".", label=text)
    right.set(xlabel="epoch", ylabel="%", ylim=(0, 100), title="test split, by return pattern")
    right.legend(fontsize=8)
    return figures.save(figure, path)


def failures(cfg: CfgNode, features: torch.Tensor, data: TestData) -> list[int]:
    """The queries whose nearest gallery sample is a miss, the latest first hit first; features (samples, D). A hit ranks after
    misses at its distance, as in the evaluation."""
    first = analysis.score_queries(*labelled_distances(cfg, features, data)).first_match
    failed = sorted((first > 1).nonzero()[0].tolist(), key=lambda number: -first[number])
    if not failed:
        raise UserError(
            "--failures finds none: each of the queries with a match has a hit at rank 1; leave the flag out."
        )
    return failed


def draw_ranks(
    cfg: CfgNode, features: torch.Tensor, data: TestData, path: Path, numbers: Sequence[int] = ()
) -> Path:
    """A row for each of the queries `numbers`, four of the split by default: the query, then the nearest gallery samples that
    the protocol allows; features (samples, D)."""
    shown = np.array(numbers or figures.spread(len(data.query), 4))
    distances, query, gallery = labelled_distances(cfg, features, data)
    nearest = analysis.nearest_samples(distances, query, gallery, shown, BEST)
    first_matches = analysis.score_queries(distances, query, gallery).first_match[shown]
    cells = []  # of each row: (sample, title, colour of the frame)
    for sample, hits, first in zip(data.query[shown].tolist(), nearest, first_matches, strict=True):
        late = f"\nfirst hit at rank {first}" if first > len(hits) else ""
        cells.append([(sample, f"query{late}", figures.ink())])
        for place, (index, distance, is_match) in enumerate(hits, start=1):
            mark, colour = ("✓", figures.MATCH) if is_match else ("✗", figures.WRONG)
            text = f"{place} {mark} d = {distance:.3g}"
            cells[-1].append((int(data.gallery[index]), text, colour))
    samples = data.samples
    stacks = [[np.concatenate(figures.images(cfg, samples[i])) for i, *_ in row] for row in cells]
    figure, axes = figures.image_grid(cfg, stacks, 1.8)
    for axes_of_row, row in zip(axes, cells, strict=True):
        for axis, (index, text, colour) in zip(axes_of_row, row, strict=False):
            axis.set_title(f"{text}\n{figures.label(cfg, data.samples[index])}", fontsize=7)
            axis.spines[:].set(visible=True, color=colour, linewidth=3)
    number, _, features_used = tables.PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    names = cfg.MODEL.MODALITIES
    order = f"; {', '.join(names)} from top to bottom" if len(names) > 1 else ""
    figure.suptitle(
        f"queries and their best ten, ✓ match, ✗ another identity{order}\n"
        f"return pattern {number} ({features_used}); d: {tables.distance_name(cfg)}{tables.options(cfg)}"
    )
    return figures.save(figure, path)


def draw_embedding(
    cfg: CfgNode, points: np.ndarray, samples: Sequence[Sample], method: str, path: Path
) -> Path:
    """A panel of the points (n, 2) of the samples, by identity, and one by camera; or, without labels, one by modalities."""
    labels = {
        "identity": np.array([sample.identity for sample in samples]),
        "camera": np.array([sample.camera + 1 for sample in samples]),  # as in file names
    }
    if samples[0].identity == UNKNOWN:
        labels = {"modalities": np.array(["+".join(sample.modalities) for sample in samples])}
    figure, axes = plt.subplots(1, len(labels), figsize=(7.5 * len(labels), 6), squeeze=False)
    number, _, name = tables.PATTERN_NAMES[cfg.TEST.RETURN_PATTERN].partition(" ")
    figure.suptitle(
        f"{EMBEDDING_METHODS[method]} of {len(samples)} samples of {cfg.DATASETS.NAMES}, return pattern {number} ({name})"
        f"{tables.options(cfg)}"
    )
    named = []
    for axis, (title, values) in zip(axes[0], labels.items(), strict=True):
        distinct = np.unique(values)
        for place, value in enumerate(distinct):
            style = {**figures.kind(place), "s": 16, "linewidths": 0, "alpha": 0.8}
            axis.scatter(*points[values == value].T, label=str(value), **style)
        axis.set(xticks=[], yticks=[], title=f"by {title} ({len(distinct)})")
        axis.spines[:].set_visible(True)
        if len(distinct) <= MOST_IN_LEGEND:
            axis.legend(title=title, loc="center left", bbox_to_anchor=(1, 0.5))
        elif len(distinct) <= MOST_NAMED:
            medians = [np.median(points[values == value], axis=0) for value in distinct]
            named.append((axis, np.array(medians), list(map(str, distinct))))
    for group in named:  # when all else is drawn
        figures.name_points(*group)
    return figures.save(figure, path)


def report_cross_modal(
    cfg: CfgNode, result: CrossModal, caption: str, json: Path | None, image: Path | None
) -> None:
    """Print the matrices as tables, and write them to the files that are given."""
    how = {"return_pattern": cfg.TEST.RETURN_PATTERN, "distance": cfg.TEST.CROSS_MODAL_DISTANCE}
    record = {"caption": caption, **how, "cross_modal": result}
    if json:
        write_json(json, record)
    if image:
        draw_cross_modal(record, image)
    print_lines(caption, *tables.cross_modal_tables(cfg, result), *filter(None, (image,)))


def draw_cross_modal(record: Mapping[str, Any], path: Path) -> None:
    """A heat map of percentages for each measure of a record of --json: queries in rows, the gallery in columns."""
    matrices = record["cross_modal"]
    figure, axes = plt.subplots(1, len(matrices), figsize=(5.5 * len(matrices), 5.5))
    for axis, (measure, rows) in zip(axes, matrices.items(), strict=True):
        shares = np.array([list(row.values()) for row in rows.values()], float)
        axis.imshow(shares, vmin=0, vmax=1, cmap=figures.SHARES, aspect="auto")
        axis.set_facecolor(figures.EMPTY)  # of NaN
        axis.grid(False)
        for (row, column), value in np.ndenumerate(shares):
            text = "–" if np.isnan(value) else f"{100 * value:.0f}"
            colour = figures.ink() if np.isnan(value) else "white" if value > 0.6 else "black"
            axis.text(column, row, text, fontsize=8, color=colour, **figures.CENTRED)
        axis.set_xticks(range(len(rows)), rows)
        axis.set_yticks(range(len(rows)), rows)
        axis.set_title(f"{measure}, %")
        axis.set(xlabel="modalities of the gallery", ylabel="modalities of the query")
    pattern = tables.PATTERN_NAMES[record["return_pattern"]]
    about = f"unequal sets: {record['distance']}, return pattern {pattern}"
    figure.suptitle(f"{record['caption']}; {about}", fontsize=9)
    figures.save(figure, path)
