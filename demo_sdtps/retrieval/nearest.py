"""The nearest gallery samples of queries, by exact search, and their re-ranking (docs/search.md).

Shapes: Q queries, n gallery samples, features (…, D) float32. Distances are those of the evaluation, squared Euclidean ones,
computed in float64 for the samples that are shown: samples of equal features have equal distances from a query, wherever they
lie, and are in the order of the gallery's rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit

from demo_sdtps.evaluation.distances import (
    Comparison,
    Modalities,
    Side,
    check_finite,
    cohort_scales,
    rerank,
)
from demo_sdtps.retrieval.features import modality_mask
from demo_sdtps.runtime.progress import progress

PRODUCT_ELEMENTS = 1 << 26  # products of queries and gallery in memory at a time
GROUP = 32  # products whose least one is found at once
SPARE = 16  # candidates beyond those that are asked for, at least
ROUNDING = 5e-6  # of (|q| + |g|)², by which a product in float32 may be wrong

Calibration = Mapping[tuple[Modalities, Modalities], tuple[float, float]]
"""By two sets of modalities, in either order, the slope and the offset of the probability that triplets of these sets at a
distance are of one identity, `expit(offset - slope * distance)`."""


class Nearest(NamedTuple):
    """Gallery rows (Q, top) int64, nearest first, and their distances (Q, top) float32; row -1, at infinity, is none."""

    rows: np.ndarray
    distances: np.ndarray


@dataclass
class Hits:
    """What `search` returns: `rows` and `distances` as in `Nearest`, which it unpacks to, and the `scores` (Q, top) by which
    they are ordered: scaled distances, minus the log-odds of the probability, or the distances. With a calibration the
    `probability` (Q, top) float64 that query and hit are of one identity, nan where it is not known."""

    rows: np.ndarray
    distances: np.ndarray
    scores: np.ndarray
    probability: np.ndarray | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.rows, self.distances))


class Gallery:
    """The gallery of searches by a comparison, with what they derive from it, which is kept for the next: of each set of
    modalities, by the columns that a query shares with it, the features, as a copy where these are not all, and their squared
    lengths. Raises `NotFiniteError`."""

    def __init__(self, comparison: Comparison, side: Side):
        self.comparison, self.side = comparison, side
        check_finite(side[0], "features of the gallery")
        self.groups = comparison.groups(side[1])
        self._views: dict[tuple[Modalities, Modalities], tuple[torch.Tensor, torch.Tensor]] = {}

    def view(self, one: Modalities, shared: Modalities) -> tuple[torch.Tensor, torch.Tensor]:
        """The features (m, d) of a set's triplets in the columns of `shared`, and their squared lengths (m,)."""
        if (one, shared) not in self._views:
            view = self.comparison.view(self.side[0][self.groups[one]], shared)
            self._views[one, shared] = view, torch.linalg.vector_norm(view, dim=1).square()
        return self._views[one, shared]


def search_sets(
    query: Side, gallery: Gallery, top: int, calibration: Calibration | None = None
) -> Hits:
    """The `top` nearest for each query, one list of all sets of modalities, filled up by row -1 where fewer have a distance.
    Each set of the queries is compared with each one of the gallery in the columns of both. Where the gallery's differ, hits
    are ordered by scaled distances (`cohort_scales`), their `scores`. Raises `NotFiniteError`."""
    comparison, (queries, present), others_present = gallery.comparison, query, gallery.side[1]
    check_finite(queries, "features of queries")
    far = np.full((len(queries), top), np.inf, np.float32)
    hits = Hits(np.full(far.shape, -1, np.int64), far, far.copy())
    if calibration:
        # distances that are scaled by these ascend as the probability falls, whatever the sets
        comparison = replace(
            comparison,
            scales={
                sets: (offset / slope, 1 / slope)
                for sets, (slope, offset) in calibration.items()
                if slope > 0
            },
        )
    scales = cohort_scales(comparison, query, gallery.side)
    for one, places in comparison.groups(present).items():
        lists = []
        for other, rows in gallery.groups.items():
            if not comparison.is_defined(one, other):
                continue
            view, lengths = gallery.view(other, one & other)
            some = comparison.view(queries[places], one & other)
            near = nearest(some, view, min(top, len(view)), lengths)
            mean, deviation = scales.get((one, other), (0.0, 1.0))
            scores = (torch.from_numpy(near.distances) - mean) / deviation
            numbers = near.rows if isinstance(rows, slice) else rows[near.rows]
            lists.append((numbers, near.distances, scores.numpy()))
        if not lists:
            continue
        values = [np.concatenate(column, axis=1) for column in zip(*lists, strict=True)]
        order = np.lexsort((values[0], values[2]))[:, :top]
        for column, value in zip((*hits, hits.scores), values, strict=True):
            column[places, : order.shape[1]] = np.take_along_axis(value, order, axis=1)
    if calibration:
        hits.probability = probabilities(calibration, hits, present, others_present)
    return hits


def probabilities(
    calibration: Calibration, hits: Hits, present: np.ndarray, others_present: np.ndarray
) -> np.ndarray:
    """The probability (Q, top) float64 that each query, by what is `present` in it, and hit are of one identity, where pairs of
    one are as frequent as in the fit; nan for sets without a fit, and for row -1."""
    values = np.full(hits.rows.shape, np.nan)
    for (one, other), (slope, offset) in calibration.items():
        is_one = (present == modality_mask(one)).all(1)
        is_other = (others_present == modality_mask(other)).all(1)
        place = is_one[:, None] & is_other[hits.rows] & (hits.rows >= 0)
        values[place] = expit(offset - slope * hits.distances[place].astype(np.float64))
    return values


def nearest(
    queries: torch.Tensor,
    gallery: torch.Tensor,
    top: int,
    lengths: torch.Tensor | None = None,
    count: int = 0,
) -> Nearest:
    """The `top` nearest rows of the gallery (n, D), whose squared `lengths` (n,) may be known, for each query (Q, D), top ≤ n.
    Products of matrices find `count` candidates; they are enough where the last of them is beyond the last hit by more than
    their rounding, and more are asked for otherwise, so that ties at the last rank are decided by the order of the rows too."""
    if lengths is None:
        lengths = torch.linalg.vector_norm(gallery, dim=1).square()
    count = min(count or max(2 * top, top + SPARE), len(gallery))
    least, rows = _smallest_products(queries, gallery, lengths, count)
    hits = _order_hits(rows, distances(queries, gallery, rows), top)
    is_short = (least <= hits.distances[:, -1]) & (count < len(gallery))
    if is_short.any():
        others = nearest(queries[is_short], gallery, top, lengths, 2 * count)
        for column, values in zip(hits, others, strict=True):
            column[is_short] = values
    return hits


def rerank_hits(how: Comparison, query: Side, gallery: Side, hits: Hits, top: int) -> Hits:
    """The `top` first of each query's hits after k-reciprocal re-ranking of these alone, with the re-ranked distances."""
    refined = np.full(hits.rows.shape, np.inf, np.float32)
    for number, rows in enumerate(progress(hits.rows, "re-ranking", unit="query")):
        order = rows.argsort()[np.count_nonzero(rows < 0) :]
        one = query[0][number : number + 1], query[1][number : number + 1]
        near = gallery[0][rows[order]], gallery[1][rows[order]]
        refined[number, order] = rerank(how, one, near).numpy()[0]
    first = _order_hits(hits.rows, refined, top)
    return Hits(*first, first.distances)


def distances(queries: torch.Tensor, gallery: torch.Tensor, rows: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (Q, count) float32 of queries (Q, D) from gallery rows (Q, count)."""
    values = np.empty(rows.shape, np.float32)
    for line, query, near in zip(values, queries.numpy(), rows, strict=True):
        line[:] = np.square(gallery[near].double().numpy() - query).sum(axis=1)
    return values


def _smallest_products(
    queries: torch.Tensor, gallery: torch.Tensor, lengths: torch.Tensor, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows (Q, count) of the smallest distances by products in float32; before them a bound of the others' (Q,)."""
    smallest, size = [], max(1, PRODUCT_ELEMENTS // max(1, len(queries)))
    factor, columns = -2 * queries.numpy(), gallery.numpy().T
    memory = np.empty((len(queries), min(size, len(gallery))), factor.dtype)
    for start in progress(range(0, len(gallery), size), "searching", unit="block"):
        some = slice(start, start + size)
        part = columns[:, some]
        # by numpy, whose products are up to a quarter faster than torch's on AMD's processors, into memory that is there
        products = np.matmul(factor, part, out=memory[:, : part.shape[1]])
        values, rows = _smallest(torch.from_numpy(products).add_(lengths[some]), count)
        smallest.append((values, rows + start))
    values, places = (torch.cat(parts, dim=1) for parts in zip(*smallest, strict=True))
    best, order = values.topk(count, largest=False)
    own = queries.square().sum(1)
    rounding = ROUNDING * (own.sqrt() + lengths.amax().sqrt()).square()
    return (best[:, -1] + own - rounding).numpy(), places.gather(1, order).numpy()


def _smallest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` smallest values of each row (Q, n), or all, and their columns. They are among those of the `count` groups, of
    GROUP neighbours each, with the smallest minima, which are found without sorting all, and the columns after the groups."""
    total = values.shape[1]
    groups = total // GROUP
    minima = values[:, : GROUP * groups].unflatten(1, (groups, GROUP)).amin(2)
    chosen = minima.topk(min(count, groups), largest=False, sorted=False).indices
    inside = GROUP * chosen.unsqueeze(2) + torch.arange(GROUP)
    rest = torch.arange(GROUP * groups, total).expand(len(values), -1)
    columns = torch.cat([inside.flatten(1), rest], dim=1)
    smallest, order = values.gather(1, columns).topk(min(count, total), largest=False)
    return smallest, columns.gather(1, order)


def _order_hits(rows: np.ndarray, values: np.ndarray, top: int) -> Nearest:
    """The `top` first of each line of candidates (Q, count ≥ top), by their distances `values`, equal ones by their rows."""
    order = np.lexsort((rows, values))[:, :top]
    return Nearest(*(np.take_along_axis(column, order, axis=1) for column in (rows, values)))
