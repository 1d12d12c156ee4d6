"""What an evaluation says beyond its means: by query, identity, pair of cameras and distance (docs/getting_started.md).

Pure functions of distances and labels. Q queries, G gallery samples; `distances` gives the rows (q, G) of some queries, as
they are ranked. The gallery samples of a query's identity and key are left out, as everywhere in evaluation.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from demo_sdtps.evaluation.metrics import (
    DistanceRows,
    average_precisions,
    chunks,
    junk_mask,
    match_ranks,
)


class Labels(NamedTuple):
    """Of the queries or of the gallery, (n,) int64 each; `key` is what the protocol excludes by: camera or scene."""

    identity: torch.Tensor
    camera: torch.Tensor
    key: torch.Tensor


class QueryScores(NamedTuple):
    """`average_precision` (Q,) float64, NaN for a query without a match; `first_match` (Q,) int64: the rank of the first match,
    from 1, or 0 without one."""

    average_precision: np.ndarray
    first_match: np.ndarray


class CameraMatrix(NamedTuple):
    """`cameras` (C,), ascending, from 0; `mAP` (C, C) float64 of the queries of a camera (row) in the gallery of a camera
    (column) alone, NaN where no query has a match there, as on the diagonal where cameras are excluded by."""

    cameras: list[int]
    mAP: np.ndarray


class IdentityScore(NamedTuple):
    """mAP of the `queries` of an identity that have a match."""

    identity: int
    mAP: float
    queries: int


class Nearest(NamedTuple):
    """The gallery samples of rank 1, 2, …, k: `sample` (n, k) int64, `distance` (n, k) float32, `is_match` (n, k) bool. Where
    fewer are left, the distance is infinite."""

    sample: np.ndarray
    distance: np.ndarray
    is_match: np.ndarray


class Histogram(NamedTuple):
    """Numbers of distances in bins, (bins,) int64: of a query to its matches (positives) and to other identities (negatives);
    `edges` (bins + 1,) float64."""

    edges: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray


def score_queries(distances: DistanceRows, query: Labels, gallery: Labels) -> QueryScores:
    """Average precision and first match of each query."""
    rank, matches = _ranks_of_matches(distances, query, gallery)
    first = np.zeros(len(matches), np.int64)
    first[matches > 0] = rank[(matches.cumsum() - matches)[matches > 0]]
    return QueryScores(average_precisions(rank, matches), first)


def camera_matrix(distances: DistanceRows, query: Labels, gallery: Labels) -> CameraMatrix:
    """mAP by camera of the query and camera of the gallery."""
    cameras = sorted({*query.camera.tolist(), *gallery.camera.tolist()})
    average = np.full((len(query.identity), len(cameras)), np.nan)
    columns = {
        place: (gallery.camera == camera).nonzero().squeeze(1)
        for place, camera in enumerate(cameras)
    }
    for queries in chunks(len(query.identity), len(gallery.identity)):
        rows, labels_of_rows = distances(queries), Labels(*(labels[queries] for labels in query))
        for place, columns_of_camera in columns.items():
            if len(columns_of_camera):
                ranks = _ranks_of_matches(
                    rows[:, columns_of_camera].__getitem__,
                    labels_of_rows,
                    Labels(*(labels[columns_of_camera] for labels in gallery)),
                )
                average[queries, place] = average_precisions(*ranks)
    matrix = np.array(
        [
            [_mean_or_none(average[query.camera.numpy() == camera, place]) for place in columns]
            for camera in cameras
        ]
    )
    return CameraMatrix(cameras, matrix)


def score_identities(average_precision: np.ndarray, identity: torch.Tensor) -> list[IdentityScore]:
    """mAP of each identity's queries by `average_precision` (Q,) and `identity` (Q,), the lowest first."""
    rows = []
    for label in identity.unique().tolist():
        precisions = average_precision[identity.numpy() == label]
        if count := int((~np.isnan(precisions)).sum()):
            rows.append(IdentityScore(label, _mean_or_none(precisions), count))
    return sorted(rows, key=lambda score: (score.mAP, score.identity))


def worst_queries(average_precision: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` queries with the lowest average precision, the lowest first; those without a match have none."""
    order = average_precision.argsort(kind="stable")  # NaN last
    return order[: min(count, int((~np.isnan(average_precision)).sum()))]


def nearest_samples(
    distances: DistanceRows, query: Labels, gallery: Labels, chosen: torch.Tensor, count: int
) -> Nearest:
    """The `count` nearest of the queries at indices `chosen` (n,); a match comes after other identities at its distance, as
    average precision counts it."""
    blocks = []
    for indices in chunks(len(chosen), len(gallery.identity)):
        rows = chosen[indices]
        same = query.identity[rows, None] == gallery.identity
        excluded = junk_mask(query.identity[rows], gallery.identity, query.key[rows], gallery.key)
        distance = distances(rows).masked_fill(excluded, torch.inf).numpy()
        order = np.lexsort((same.numpy(), distance), axis=1)[:, :count]
        blocks.append(
            [
                order,
                np.take_along_axis(distance, order, 1),
                np.take_along_axis(same.numpy(), order, 1),
            ]
        )
    return Nearest(*map(np.concatenate, zip(*blocks, strict=True)))


def distance_histogram(
    distances: DistanceRows, query: Labels, gallery: Labels, bins: int = 60
) -> Histogram:
    """Equal bins from 0 to the largest distance that counts; negative distances, which rounding makes, count as 0."""
    largest = max(
        float(rows[positive | negative].max(initial=0))
        for rows, positive, negative in _kinds(distances, query, gallery)
    )
    limits, counts = (0.0, largest or 1.0), np.zeros((2, bins), np.int64)
    for rows, *kinds in _kinds(distances, query, gallery):
        for place, wanted in enumerate(kinds):
            counts[place] += np.histogram(rows[wanted], bins, limits)[0]
    return Histogram(np.linspace(*limits, bins + 1), *counts)


def _kinds(
    distances: DistanceRows, query: Labels, gallery: Labels
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """By part of the queries: distances (q, G), at least 0, which of them are to matches, and which to other identities."""
    for rows in chunks(len(query.identity), len(gallery.identity)):
        same = query.identity[rows, None] == gallery.identity
        excluded = junk_mask(query.identity[rows], gallery.identity, query.key[rows], gallery.key)
        yield distances(rows).clamp(min=0).numpy(), (same & ~excluded).numpy(), (~same).numpy()


def _ranks_of_matches(
    distances: DistanceRows, query: Labels, gallery: Labels
) -> tuple[np.ndarray, np.ndarray]:
    return match_ranks(
        distances,
        (len(query.identity), len(gallery.identity)),
        (query.identity, gallery.identity),
        (query.key, gallery.key),
    )


def _mean_or_none(values: np.ndarray) -> float:
    """Mean without NaN; NaN of none."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")
