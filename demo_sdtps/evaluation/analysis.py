"""What an evaluation says beyond its means: by query, identity, pair of cameras and distance (docs/getting_started.md), and
features in two dimensions.

Pure functions of distances and labels, of Q queries and G gallery samples. The gallery samples of a query's identity and key
are left out, as everywhere in evaluation.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from demo_sdtps.evaluation.distances import Distances, matrix_distances
from demo_sdtps.evaluation.metrics import Labels, score_queries
from demo_sdtps.runtime.errors import UserError, check_extra

PERPLEXITY = 30  # of t-SNE, lowered for fewer points
REDUCED = 50  # principal components that t-SNE sees: the others are noise to it, and cost time
LEAST = 4  # points, for the neighbours of t-SNE


class IdentityScore(NamedTuple):
    """mAP of the `queries` of an identity that have a match."""

    identity: int
    mAP: float
    queries: int


class Hit(NamedTuple):
    """A sample of a rank list, by its index in the gallery."""

    sample: int
    distance: float
    is_match: bool


class Histogram(NamedTuple):
    """Numbers of distances in bins, (bins,) int64: of a query to its matches (positives) and to other identities (negatives);
    `edges` (bins + 1,) float64."""

    edges: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray


def camera_matrix(
    distances: Distances, query: Labels, gallery: Labels
) -> tuple[list[int], np.ndarray]:
    """The cameras (C,), ascending, from 0; mAP (C, C) float64 of the queries of a camera (row) in the gallery of a camera
    (column) alone, NaN where no query has a match there, as on the diagonal where cameras are excluded by."""
    cameras = sorted({*query.camera.tolist(), *gallery.camera.tolist()})
    average = np.full((len(query.identity), len(cameras)), np.nan)
    for rows, block in distances.blocks():
        for column, camera in enumerate(cameras):
            samples = (gallery.camera == camera).nonzero()[0]
            of_camera = query.select(rows), gallery.select(samples)
            scores = score_queries(matrix_distances(block[:, samples]), *of_camera)
            average[rows, column] = scores.average_precision
    by_camera = [average[query.camera == camera].T for camera in cameras]
    return cameras, np.array([list(map(_mean, columns)) for columns in by_camera])


def score_identities(average_precision: np.ndarray, identity: np.ndarray) -> list[IdentityScore]:
    """mAP of each identity's queries by `average_precision` (Q,) and `identity` (Q,), the lowest first."""
    rows = []
    for label in np.unique(identity).tolist():
        precisions = average_precision[identity == label]
        if count := int((~np.isnan(precisions)).sum()):
            rows.append(IdentityScore(label, _mean(precisions), count))
    return sorted(rows, key=lambda score: (score.mAP, score.identity))


def worst_queries(average_precision: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` queries with the lowest average precision, the lowest first; those without a match have none."""
    order = average_precision.argsort(kind="stable")  # NaN last
    return order[: min(count, int((~np.isnan(average_precision)).sum()))]


def nearest_samples(
    distances: Distances, query: Labels, gallery: Labels, chosen: np.ndarray, count: int
) -> list[list[Hit]]:
    """The `count` nearest of the queries at indices `chosen` (n,), fewer where the gallery has no more; a match comes after
    other identities at its distance, as average precision counts it."""
    lists = []
    for number, distance in zip(chosen, distances.rows(chosen).cpu().numpy(), strict=True):
        is_match, is_other = _kinds(query.select(number), gallery)
        distance = np.where(is_match | is_other, distance, np.inf)
        order = np.lexsort((is_match, distance))[:count]
        hits = zip(order.tolist(), distance[order].tolist(), is_match[order].tolist(), strict=True)
        lists.append([hit for hit in map(Hit._make, hits) if hit.distance < np.inf])
    return lists


def distance_histogram(
    distances: Distances, query: Labels, gallery: Labels, bins: int = 60
) -> Histogram:
    """Equal bins from 0 to the largest distance that counts; negative distances, which rounding makes, count as 0, infinite
    ones, of samples without a modality in common, not at all."""

    def by_kind() -> Iterator[list[np.ndarray]]:
        """The distances of a block of queries to their matches, and to other identities."""
        for rows, block in distances.blocks():
            distance = block.clamp(min=0).cpu().numpy()
            kinds = _kinds(query.select(rows), gallery)
            yield [distance[kind & np.isfinite(distance)] for kind in kinds]

    largest = max(float(values.max(initial=0)) for kinds in by_kind() for values in kinds)
    limits, counts = (0.0, largest or 1.0), np.zeros((2, bins), np.int64)
    for kinds in by_kind():
        counts += [np.histogram(values, bins, limits)[0] for values in kinds]
    return Histogram(np.linspace(*limits, bins + 1), *counts)


def _kinds(query: Labels, gallery: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Which gallery samples are matches of each query (q,), or of one, and which are of other identities: (q, G) bool each."""
    is_same = query.identity[..., None] == gallery.identity
    return is_same & (query.key[..., None] != gallery.key), ~is_same


def _mean(values: np.ndarray) -> float:
    """Mean without NaN; NaN of none."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def check_points(count: int) -> None:
    """Raise `UserError` for fewer than 4 features, and where scikit-learn is not installed."""
    if count < LEAST:
        raise UserError(
            f"There are {count} samples, but a scatter plot needs at least {LEAST}; show more."
        )
    check_extra("demo-sdtps draw embedding", "report", {"sklearn": "scikit-learn"})


def embed(features: np.ndarray, method: str, seed: int) -> np.ndarray:
    """features (n, D) → (n, 2) float32 by one of `EMBEDDING_METHODS`; zeros where all features are equal.

    The same seed gives the same result on the same machine.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    values = features.astype(np.float64)
    if not np.ptp(values, axis=0).any():
        return np.zeros((len(values), 2), np.float32)
    components = PCA(min(REDUCED, *values.shape), svd_solver="full").fit_transform(values)
    if method == "tsne":
        perplexity = min(PERPLEXITY, (len(values) - 1) / 3)  # less than the number of samples
        reducer = TSNE(2, random_state=seed, perplexity=perplexity)
        components = reducer.fit_transform(components)
    return components[:, :2].astype(np.float32)
