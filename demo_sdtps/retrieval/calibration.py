"""The probability that two triplets are of the same identity, by their distance: demo-sdtps calibrate.

It is fitted on labelled triplets that the model was not trained on, for each pair of sets of modalities (distances.py), as
distances by different columns differ (docs/search.md).
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from yacs.config import CfgNode

from demo_sdtps.config import UserError, with_values
from demo_sdtps.config.common import print_lines
from demo_sdtps.datasets import Sample, read_splits
from demo_sdtps.evaluation.distances import make_comparison, set_distances, set_name
from demo_sdtps.evaluation.protocol import (
    by_trained_cameras,
    extract_features,
    make_test_data,
    missing_cases,
    select_side,
)
from demo_sdtps.modeling.checkpoints.loading import weights_file
from demo_sdtps.retrieval.features import modality_mask
from demo_sdtps.retrieval.reid import SUFFIX, calibration_settings, make_extractor
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.files import check_output_file, sha256, write_json

FEWEST = 10  # pairs of one identity, and of different ones, that a fit has
Pairs = tuple[np.ndarray, np.ndarray]
"""Distances, (n,), of the pairs of triplets of one identity by different cameras, and of those of different identities; of one
set of modalities every pair is there in both orders."""
Labelled = tuple[np.ndarray, Sequence[np.ndarray], Sequence[np.ndarray]]
"""Distances (n, m) float32 of triplets, and the identities and the cameras of both sides, (n,) and (m,)."""


def fit(pairs: Pairs) -> dict[str, float]:
    """Slope, at least 0, and offset of the likeliest logistic function of distances, by Platt's targets (1999), and counts."""
    same, different = map(len, pairs)
    distances = np.concatenate(pairs).astype(np.float64)
    targets = np.repeat([(same + 1) / (same + 2), 1 / (different + 2)], [same, different])

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logits = parameters[1] - parameters[0] * distances
        errors = expit(logits) - targets
        gradient = np.array([-(errors * distances).mean(), errors.mean()])
        return float((np.logaddexp(0, logits) - targets * logits).mean()), gradient

    bounds = [(0, None), (None, None)]
    slope, offset = minimize(loss, [1.0, 0.0], jac=True, bounds=bounds, tol=1e-14).x.tolist()
    return {"slope": slope, "offset": offset, "same": same, "different": different}


def select_pairs(labelled: Labelled) -> Pairs:
    """The pairs of labelled triplets."""
    distances, identities, cameras = labelled
    is_same, is_same_camera = (one[:, None] == other for one, other in (identities, cameras))
    return distances[is_same & ~is_same_camera], distances[~is_same]


def label_distances(cfg: CfgNode, samples: Sequence[Sample]) -> Iterator[tuple[int, str, Labelled]]:
    """By return pattern and two sets of modalities that are compared, such as "RGB, RGB+NI+TI": the distances of the samples as
    of these sets, by the model of TEST.WEIGHT. Cameras of the training are known by their names, any other is their mean, as in
    a search; scenes stand for cameras where the protocol excludes by these. Raises `UserError` without labels or matches."""
    reid = make_extractor(cfg).to(choose_device(cfg))
    cfg, cases = with_values(cfg, {"TEST.FEAT_NORM": "yes"}), missing_cases(reid.model.modalities)
    samples = by_trained_cameras(cfg, {"": [*samples]}, reid.camera_names, reid.cameras)[""]
    data, whole = make_test_data(cfg, samples, samples), frozenset(reid.model.modalities)
    extracted = extract_features(cfg, reid.model, data.loader, [*cases.values()])
    for pattern in extracted[0]:
        comparison, sides = make_comparison(cfg, pattern), {}
        for features, missing in reversed([*zip(extracted, cases.values(), strict=True)]):
            values, present = select_side(cfg, features[pattern], data, data.query, missing)
            rows = np.flatnonzero((present == modality_mask(whole - missing)).all(axis=1))
            labels = data.labels[0].select(rows)
            if len(rows):
                sides[set_name(whole - missing)] = (values[rows], present[rows]), labels
        cells = combinations_with_replacement(sides.items(), 2)
        for (one, (query, own)), (other, (gallery, others)) in cells:
            distances = set_distances(comparison, query, gallery).numpy()
            if np.isfinite(distances).all():  # there is a modality in common
                identities, cameras = (own.identity, others.identity), (own.key, others.key)
                yield pattern, f"{one}, {other}", (distances, identities, cameras)


def calibrate(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Fit all return patterns on the split --split, and write the calibration beside the checkpoint. Raises `UserError` for too
    few pairs."""
    weights = weights_file(cfg.TEST.WEIGHT)
    path = check_output_file(weights.with_suffix(SUFFIX), ".json", arguments.overwrite)
    samples = read_splits(cfg, (arguments.split,))[arguments.split]
    patterns: dict[str, dict[str, Any]] = defaultdict(dict)
    for pattern, name, labelled in label_distances(cfg, samples):
        if min(map(len, pairs := select_pairs(labelled))) >= FEWEST:
            patterns[str(pattern)][name] = fit(pairs)
    if not patterns:
        raise UserError(
            f"There are fewer than {FEWEST} pairs of labelled triplets of one identity by different cameras, or of different "
            "identities; give more images."
        )
    record = {"checkpoint_sha256": sha256(weights), "settings": calibration_settings(cfg)}
    write_json(path, {**record, "patterns": patterns})
    print_lines(f"Wrote {path}, by {len(samples)} triplets.")
