"""What demo-sdtps analyse and the report's page have in common: an evaluation analysed, within the bounds of a file."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.evaluation import analysis
from demo_sdtps.evaluation.embedding import METHODS, embed
from demo_sdtps.evaluation.extraction import CASES
from demo_sdtps.evaluation.metrics import DistanceRows
from demo_sdtps.evaluation.protocol import (
    TestData,
    distance_rows,
    exclude_key,
    normalise,
    rank_features,
)
from demo_sdtps.evaluation.tables import Record, options, reid_record
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.reports.figures import spread
from demo_sdtps.runtime.progress import progress

WORST, NEAREST = 20, 10

# (samples, D) by case of missing modalities and return pattern
Features = Mapping[str, Mapping[int, torch.Tensor]]


@dataclass(frozen=True)
class Analysis:
    """All but `records` is of TEST.RETURN_PATTERN in the case of TEST.MISS. Queries and samples are named by their indices."""

    records: Mapping[str, Record]  # by case of missing modalities
    scores: analysis.QueryScores
    cameras: analysis.CameraMatrix
    identities: list[analysis.IdentityScore]
    worst: list[int]  # queries, the lowest average precision first
    # by query: (gallery sample, distance, whether it is a match)
    rank_lists: dict[int, list[tuple[int, float, bool]]]
    distances: analysis.Histogram
    points: list[int]  # samples in the scatter plots
    embeddings: dict[str, np.ndarray]  # (points, 2) by method


def analysis_case(cfg: CfgNode) -> str:
    """The case of TEST.MISS by its name in `CASES`."""
    missing = missing_modalities(cfg.TEST.MISS)
    return next(name for name, case in CASES.items() if case == missing)


def analyse(
    cfg: CfgNode, data: TestData, features: Features, queries: int, points: int
) -> Analysis:
    """With rank lists of at most `queries`, and at most `points` samples in two dimensions."""
    records = {case: rank_patterns(cfg, of_case, data) for case, of_case in features.items()}
    chosen = features[analysis_case(cfg)][cfg.TEST.RETURN_PATTERN]
    distances, query, gallery = rank_rows(cfg, chosen, data)
    scores = analysis.score_queries(distances, query, gallery)
    worst = analysis.worst_queries(scores.average_precision, min(WORST, queries)).tolist()
    others = sorted({*range(len(data.query))} - {*worst})
    chosen_others = [others[place] for place in spread(len(others), queries - len(worst))]
    listed = sorted(worst + chosen_others)
    nearest = analysis.nearest_samples(distances, query, gallery, torch.tensor(listed), NEAREST)
    shown = spread(len(data.samples), points)
    shown_features = normalise(cfg, chosen[shown]).numpy()
    methods = progress(("pca", "tsne"), "features in two dimensions", unit="method")
    embeddings = {METHODS[name]: embed(shown_features, name, cfg.SOLVER.SEED) for name in methods}
    return Analysis(
        records,
        scores,
        analysis.camera_matrix(distances, query, gallery),
        analysis.score_identities(scores.average_precision, query.identity),
        worst,
        dict(zip(listed, rank_lists(data, nearest), strict=True)),
        analysis.distance_histogram(distances, query, gallery),
        shown,
        embeddings,
    )


def rank_patterns(
    cfg: CfgNode, features: Mapping[int, torch.Tensor], data: TestData
) -> dict[str, dict[str, float]]:
    """The record of features (samples, D) by return pattern."""
    items = features.items()
    return reid_record({name: rank_features(cfg, each, data, name) for name, each in items})


def rank_rows(
    cfg: CfgNode, features: torch.Tensor, data: TestData
) -> tuple[DistanceRows, analysis.Labels, analysis.Labels]:
    """The first arguments of the functions of evaluation/analysis.py, by features (samples, D)."""
    names = ("identity", "camera", exclude_key(cfg))
    query, gallery = (
        analysis.Labels(*(data.labels(name, side) for name in names))
        for side in (data.query, data.gallery)
    )
    return distance_rows(cfg, features, data), query, gallery


def rank_lists(data: TestData, nearest: analysis.RankLists) -> list[list[tuple[int, float, bool]]]:
    """The lists of `Analysis`, one per row of `nearest`; a short gallery has fewer samples."""
    columns = nearest._replace(sample=data.gallery.numpy()[nearest.sample])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [[hit for hit in zip(*row, strict=True) if hit[1] < np.inf] for row in rows]


def as_json(cfg: CfgNode, data: TestData, result: Analysis) -> dict[str, object]:
    """`result` as plain lists, dicts and numbers (docs/getting_started.md)."""
    scores = [values.tolist() for values in result.scores]
    return {
        "weight": cfg.TEST.WEIGHT,
        "return_pattern": cfg.TEST.RETURN_PATTERN,
        "missing": analysis_case(cfg),
        "options": options(cfg).removeprefix(", "),
        "cases": result.records,
        "samples": [vars(sample) for sample in data.samples],
        "queries": [
            {"sample": sample, "average_precision": finite_or_none(value), "first_match": rank}
            for sample, value, rank in zip(data.query.tolist(), *scores, strict=True)
        ],
        "rank_lists": [
            {
                "query": query,
                "nearest": [
                    dict(zip(analysis.RankLists._fields, hit, strict=True)) for hit in nearest
                ],
            }
            for query, nearest in result.rank_lists.items()
        ],
        "worst_queries": result.worst,
        "camera_matrix": {"cameras": result.cameras.cameras, "mAP": camera_rows(result)},
        "identities": [score._asdict() for score in result.identities],
        "distances": as_lists(result.distances._asdict()),
        "scatter": {"samples": result.points, **as_lists(result.embeddings)},
    }


def as_lists(arrays: Mapping[str, np.ndarray]) -> dict[str, list]:
    return {name: values.tolist() for name, values in arrays.items()}


def camera_rows(result: Analysis) -> list[list[float | None]]:
    """The matrix of cameras, None where it is blank."""
    return [[finite_or_none(value) for value in row] for row in result.cameras.mAP.tolist()]


def finite_or_none(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if np.isnan(value) else value
