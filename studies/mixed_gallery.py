"""What a gallery costs whose triplets lack different modalities.

Every triplet of the gallery is given one of some sets of modalities at random, ten times. mAP of queries of a set by return
pattern 3: "explained" by the missing images is the mean of galleries of each set alone, weighted by the shares; then the mixed
gallery, by distances as they are, scaled (docs/method.md), and by the probability of the checkpoint's calibration; and how many
of the first ten hits are of the last set.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets import read_splits
from demo_sdtps.evaluation.distances import (
    make_comparison,
    matrix_distances,
    measure_in_memory,
    set_distances,
)
from demo_sdtps.evaluation.extraction import extract_features, missing_cases
from demo_sdtps.evaluation.protocol import make_test_data, modality_sets, rank_distances
from demo_sdtps.evaluation.tables import markdown_table
from demo_sdtps.retrieval.extractor import make_extractor

DRAWS, TOP = 10, 10
GALLERIES = (
    ("RNT", {"RNT": 0.5, "R": 0.5}),
    ("RNT", {"RNT": 0.5, "NT": 0.5}),
    ("R", {"RNT": 0.5, "R": 0.5}),
    ("RT", {"RNT": 0.5, "T": 0.5}),
    ("RNT", dict.fromkeys(("RNT", "RN", "RT", "NT", "N", "T", "R"), 1 / 7)),
)
"""Modalities of the queries, and shares of sets in the gallery."""
KINDS = ("unscaled", "scaled", "calibrated")
COLUMNS = ("explained", *KINDS, *(f"last of ten, {kind}" for kind in KINDS))


def measure(cfg: CfgNode) -> dict[str, Any]:
    extractor = make_extractor(cfg)
    if 3 not in extractor.calibrations:
        raise UserError(f"{cfg.TEST.WEIGHT} has no calibration; run demo-sdtps calibrate.")
    model = extractor.model
    data = make_test_data(cfg, **read_splits(cfg, ("query", "gallery")))
    cases = missing_cases(MODALITIES)
    extracted = extract_features(cfg, model, data.loader, [*cases.values()])
    features = dict(zip(cases, extracted, strict=True))
    by_set = {
        name: F.normalize(features[case][3]) for name, case in modality_sets(MODALITIES).items()
    }
    present_in = {name: [each[0] in name for each in MODALITIES] for name in by_set}
    comparison, rng, rows = make_comparison(cfg, 3), np.random.default_rng(0), []
    calibrated = replace(comparison, scales=extractor.calibrations[3].scales())
    for query_set, shares in GALLERIES:
        count = len(data.query)
        query = by_set[query_set][data.query], np.tile(present_in[query_set], (count, 1))
        names, alone = list(shares), {}
        values: dict[str, list[float]] = {name: [] for name in COLUMNS}
        for name in names:
            side = by_set[name][data.gallery], np.tile(present_in[name], (len(data.gallery), 1))
            alone[name] = rank_distances(cfg, measure_in_memory(comparison, query, side), data).mAP
        values["explained"] = [sum(alone[name] * share for name, share in shares.items())]
        for _ in range(DRAWS):
            drawn = rng.choice(len(names), len(data.gallery), p=list(shares.values()))
            of_row = [
                by_set[names[place]][row] for place, row in zip(drawn, data.gallery, strict=True)
            ]
            present = np.array([present_in[names[place]] for place in drawn])
            gallery = torch.stack(of_row), present
            matrices = [
                set_distances(comparison, query, gallery),
                *(
                    measure_in_memory(one, query, gallery).values
                    for one in (comparison, calibrated)
                ),
            ]
            for kind, matrix in zip(KINDS, matrices, strict=True):
                values[kind].append(rank_distances(cfg, matrix_distances(matrix), data).mAP)
                first = drawn[matrix.topk(TOP, largest=False).indices.numpy()]
                values[f"last of ten, {kind}"].append(float((first == len(names) - 1).mean()))
        means = {name: mean(column) for name, column in values.items()}
        rows.append({"query": query_set, "gallery": shares, "alone": alone, **means})
    return {"draws": DRAWS, "rows": rows}


def table(content: Mapping[str, Any]) -> str:
    """Percent, a line for each gallery."""
    lines = [
        [
            row["query"],
            ", ".join(f"{share:.0%} {name}" for name, share in row["gallery"].items()),
            *(f"{100 * row[name]:.1f}" for name in COLUMNS[: 1 + len(KINDS)]),
            *(f"{row[name]:.0%}" for name in COLUMNS[1 + len(KINDS) :]),
        ]
        for row in content["rows"]
    ]
    return markdown_table(["query", "gallery", *COLUMNS], lines)
