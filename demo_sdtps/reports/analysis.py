"""What demo-sdtps analyse writes and the report's page shows: an evaluation analysed, within the bounds of a file."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from yacs.config import CfgNode

from demo_sdtps.evaluation import analysis
from demo_sdtps.evaluation.analysis import METHODS, embed
from demo_sdtps.evaluation.distances import Distances
from demo_sdtps.evaluation.extraction import CASES
from demo_sdtps.evaluation.protocol import (
    TestData,
    exclude_key,
    normalise,
    rank_features,
    ranked_distances,
)
from demo_sdtps.evaluation.tables import Record, options, reid_record
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.reports.figures import spread
from demo_sdtps.runtime.progress import progress

WORST, NEAREST = 20, 10

# (samples, D) by case of missing modalities and return pattern
Features = Mapping[str, Mapping[int, torch.Tensor]]


def analysis_case(cfg: CfgNode) -> str:
    """The case of TEST.MISS by its name in `CASES`."""
    missing = missing_modalities(cfg.TEST.MISS)
    return next(name for name, case in CASES.items() if case == missing)


def analyse(
    cfg: CfgNode, data: TestData, features: Features, queries: int, points: int
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
    nearest = analysis.nearest_samples(*ranking, torch.tensor(listed), NEAREST)
    cameras, matrix = analysis.camera_matrix(*ranking)
    identities = analysis.score_identities(scores.average_precision, ranking[1].identity)
    histogram = analysis.distance_histogram(*ranking)
    gallery, shown = data.gallery.tolist(), spread(len(data.samples), points)
    shown_features = normalise(cfg, chosen[shown]).numpy()
    methods = progress(("pca", "tsne"), "features in two dimensions", unit="method")
    places = {METHODS[name]: embed(shown_features, name, cfg.SOLVER.SEED) for name in methods}
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
        "rank_lists": [
            {
                "query": query,
                "nearest": [hit._asdict() | {"sample": gallery[hit.sample]} for hit in hits],
            }
            for query, hits in zip(listed, nearest, strict=True)
        ],
        "worst_queries": worst,
        "camera_matrix": {
            "cameras": cameras,
            "mAP": [list(map(number, row)) for row in matrix.tolist()],
        },
        "identities": [score._asdict() for score in identities],
        "distances": {name: counts.tolist() for name, counts in histogram._asdict().items()},
        "scatter": {"samples": shown} | {name: rows.tolist() for name, rows in places.items()},
    }


def rank_patterns(cfg: CfgNode, features: Mapping[int, torch.Tensor], data: TestData) -> Record:
    """The record of features (samples, D) by return pattern."""
    items = features.items()
    return reid_record({name: rank_features(cfg, each, data, name) for name, each in items})


def labelled_distances(
    cfg: CfgNode, features: torch.Tensor, data: TestData
) -> tuple[Distances, analysis.Labels, analysis.Labels]:
    """The first arguments of the functions of evaluation/analysis.py, by features (samples, D)."""
    names = ("identity", "camera", exclude_key(cfg))
    query, gallery = (
        analysis.Labels(*(data.labels(name, side) for name in names))
        for side in (data.query, data.gallery)
    )
    return ranked_distances(cfg, features, data), query, gallery


def number(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if math.isnan(value) else value
