"""The nearest gallery samples of queries: exact, from candidates, and re-ranked (docs/retrieval.md).

Shapes: Q queries, n gallery samples, features (…, D) float32 of length 1. Distances are those of the evaluation, squared
Euclidean ones, computed in float64 for the samples that are shown: samples of equal features have equal distances from a query,
wherever they lie, and are ordered by name.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from demo_sdtps.evaluation.distances import (
    Comparison,
    Side,
    check_finite,
    cohort_scales,
    set_name,
)
from demo_sdtps.evaluation.reranking import rerank
from demo_sdtps.retrieval.blocks import FeatureBlocks, Gallery
from demo_sdtps.retrieval.features import Hits, Nearest
from demo_sdtps.runtime.progress import progress

NONE = (-1, np.inf, np.inf)
"""Row, distance and score of a hit that there is not."""
SPARE = 16  # candidates beyond those that are asked for, at least
ROUNDING = 2e-5  # what a distance by a product in float32 may differ from the true one
FLAT_QUERIES = 1024  # that are compared with a block at a time
NEAREST_ELEMENTS = 1 << 24  # numbers of the features that are compared at a time


Search = Callable[[np.ndarray, FeatureBlocks, Sequence[str], int], Nearest]
"""`nearest`, or one like it."""


def search_sets(
    comparison: Comparison, query: Side, gallery: Gallery, top: int, search: Search
) -> Hits:
    """The `top` nearest for each query by the distance of `comparison`: one list of hits of all sets of modalities, filled up
    by row -1 where fewer have a distance. Where the sets of the gallery differ, they are ordered by scaled distances
    (`cohort_scales`), their `scores`; those beyond the limits of the comparison come last.

    Each set of the queries is compared with each one of the gallery by `search`, in the columns of both: the gallery is read
    once for each pair of sets.
    """
    queries, present = query
    check_finite(queries, "features of queries")
    hits = Hits(*_no_hits(len(queries), top))
    hits.scores = hits.distances.copy()
    scales = cohort_scales(comparison, query, gallery.present, gallery.take)
    for one, places in comparison.groups(present).items():
        lists, scores, far = [], [], []
        for other, rows in comparison.groups(gallery.present).items():
            if not comparison.is_defined(one, other):
                continue
            shared = one & other
            name = f"{set_name(one)} in {set_name(other)} by {set_name(shared)}, {comparison.how}"
            view = gallery.features.view(rows, partial(comparison.view, shared=shared), name)
            vectors = comparison.view(queries[places], shared).numpy()
            lists.append(search(vectors, view, gallery.names, min(top, len(view))))
            mean, deviation = scales.get((one, other), (0.0, 1.0))
            scores.append(((torch.from_numpy(lists[-1].distances) - mean) / deviation).numpy())
            far.append(
                lists[-1].distances.astype(float) > comparison.limits.get((one, other), np.inf)
            )
        if lists:
            columns = [np.concatenate(column, axis=1) for column in zip(*lists, strict=True)]
            columns.append(np.concatenate(scores, axis=1))
            order = known_first(columns[2], np.concatenate(far, axis=1))
            chosen = _places(columns[0], order, gallery.names, top)
            for whole, column, none in zip((*hits, hits.scores), columns, NONE, strict=True):
                whole[places] = _take(column, chosen, none)
    return hits


def known_first(scores: np.ndarray, is_unknown: np.ndarray) -> np.ndarray:
    """What orders hits (Q, count) by their scores, those that are unknown after all others."""
    values = np.where(np.isfinite(scores), scores, 0).astype(np.float64)
    span = 1 + np.ptp(values, axis=1, keepdims=True)
    return scores + span * is_unknown


def nearest(queries: np.ndarray, gallery: FeatureBlocks, names: Sequence[str], top: int) -> Nearest:
    """The `top` nearest rows of `gallery` for each query (Q, D), top ≤ n, by comparison with all of it.

    Products of matrices find candidates; they are enough where the last of them is beyond the last hit by more than their
    rounding, and more are asked for otherwise, so ties at the last rank are decided by name too.
    """
    hits = _no_hits(len(queries), top)
    left, count = np.arange(len(queries)), max(2 * top, top + SPARE)
    while len(left):
        count = min(count, len(gallery))
        rough, rows = _flat(queries[left], gallery, count)
        sure = _order_hits(rows, distances(queries[left], gallery, rows), names, top)
        enough = (rough[:, -1] - ROUNDING > sure.distances[:, -1]) | (count == len(gallery))
        _fill(hits, left, sure)
        left, count = left[~enough], 2 * count
    return hits


def among(
    queries: np.ndarray, gallery: FeatureBlocks, names: Sequence[str], top: int, rows: np.ndarray
) -> Nearest:
    """`nearest` of candidate rows (Q, count ≥ top) int64, -1 for none. Queries with fewer than `top` candidates are compared
    with the whole gallery."""
    hits = _order_hits(rows, distances(queries, gallery, rows), names, top)
    short = np.flatnonzero(hits.rows[:, -1] < 0)
    _fill(hits, short, nearest(queries[short], gallery, names, top))
    return hits


def rerank_hits(
    comparison: Comparison, query: Side, gallery: Gallery, hits: Nearest, top: int
) -> Nearest:
    """The `top` first of each query's hits after k-reciprocal re-ranking of these alone, with the re-ranked distances."""
    refined = np.full(hits.rows.shape, np.inf, np.float32)
    for number, rows in enumerate(progress(hits.rows, "re-ranking", unit="query")):
        order = rows.argsort()[np.count_nonzero(rows < 0) :]
        one = query[0][number : number + 1], query[1][number : number + 1]
        refined[number, order] = _reranked(comparison, one, gallery, rows[order])[0]
    return _order_hits(hits.rows, refined, gallery.names, top)


def rerank_all(comparison: Comparison, query: Side, gallery: Gallery, top: int) -> Nearest:
    """The `top` first after k-reciprocal re-ranking of all queries and the whole gallery, which the memory must hold."""
    rows = gallery.features.rows
    matrix = _reranked(comparison, query, gallery, rows)
    return _order_hits(np.broadcast_to(rows, matrix.shape), matrix, gallery.names, top)


def _reranked(
    comparison: Comparison, query: Side, gallery: Gallery, rows: np.ndarray
) -> np.ndarray:
    side = gallery.take(rows), gallery.present[rows]
    return rerank(comparison, query, side).values.numpy()


def distances(queries: np.ndarray, gallery: FeatureBlocks, rows: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (Q, count) float32 of queries (Q, D) from gallery rows (Q, count); infinite for row -1."""
    values = np.full(rows.shape, np.inf, np.float32)
    size = max(1, NEAREST_ELEMENTS // (rows.shape[1] * queries.shape[1]))
    for start in range(0, len(rows), size):
        unique, place = np.unique(rows[start : start + size].clip(0), return_inverse=True)
        features = gallery.take(unique).astype(np.float64)
        for number, row in enumerate(place.reshape(-1, rows.shape[1]), start):
            values[number] = np.square(features[row] - queries[number]).sum(axis=1)
    return np.where(rows < 0, np.float32(np.inf), values)


def write_csv(
    path: Path,
    queries: Sequence[str],
    hits: Iterable[Iterable[tuple]],
    columns: Sequence[str] = (),
) -> None:
    """Write a line for each hit, by query and rank from 1, given the files of queries, and of hits with their distances and
    the values of further `columns`."""
    # A file name may have bytes that are not UTF-8, which are written as they are.
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("query", "rank", "gallery", "distance", *columns))
        for query, line in zip(queries, hits, strict=True):
            writer.writerows(
                (query, rank, hit, f"{distance:.6f}", *more)
                for rank, (hit, distance, *more) in enumerate(line, start=1)
            )


def _flat(queries: np.ndarray, gallery: FeatureBlocks, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` smallest distances (Q, count) by products in float32, ascending, and their rows."""
    sides = torch.from_numpy(queries).split(FLAT_QUERIES)
    values = [side.new_full((len(side), count), torch.inf) for side in sides]
    places = [torch.full((len(side), count), -1) for side in sides]
    for rows, block in gallery.blocks("searching"):
        others = torch.from_numpy(block if block.flags.writeable else block.copy())
        lengths, numbers = others.square().sum(1), torch.from_numpy(rows)
        for side, best, nearest_rows in zip(sides, values, places, strict=True):
            products = torch.addmm(lengths, side, others.T, alpha=-2)
            # few queries have a nearer one in a later block; the others are not sorted
            closer = torch.nonzero(products.amin(1) < best[:, -1])[:, 0]
            near, index = products[closer].topk(min(count, len(block)), largest=False)
            near, order = torch.cat([best[closer], near], 1).topk(count, largest=False)
            index = torch.cat([nearest_rows[closer], numbers[index]], 1)
            best[closer], nearest_rows[closer] = near, index.gather(1, order)
    lengths = torch.from_numpy(queries).square().sum(1, keepdim=True)
    return (torch.cat(values) + lengths).numpy(), torch.cat(places).numpy()


def _order_hits(rows: np.ndarray, values: np.ndarray, names: Sequence[str], top: int) -> Nearest:
    """The `top` first of each line of candidates (Q, count), by their distances `values`, then by name."""
    chosen = _places(rows, values, names, top)
    return Nearest(
        *(_take(column, chosen, none) for column, none in zip((rows, values), NONE, strict=False))
    )


def _places(rows: np.ndarray, values: np.ndarray, names: Sequence[str], top: int) -> np.ndarray:
    """Where the `top` first of each line of candidates (Q, count) are, by `values`, then by name; -1 beyond the last."""
    chosen = np.full((len(rows), top), -1)
    last = min(top, rows.shape[1]) - 1
    for number, (line, of_line) in enumerate(zip(rows.tolist(), values, strict=True)):
        near = np.flatnonzero(of_line <= np.partition(of_line, last)[last])
        order = near[of_line[near].argsort(kind="stable")]
        if len(np.unique(of_line[order])) < len(order):  # names, which are read slowly, decide
            order = np.array(sorted(order, key=lambda place: (of_line[place], names[line[place]])))
        chosen[number, : len(order[:top])] = order[:top]
    return chosen


def _take(column: np.ndarray, places: np.ndarray, none: float) -> np.ndarray:
    """The values (Q, top) of a column (Q, count) at places (Q, top), `none` at -1."""
    return np.where(places < 0, none, np.take_along_axis(column, places.clip(0), axis=1))


def _fill(hits: Nearest, queries: slice | np.ndarray, others: Nearest) -> None:
    """Put the hits of some queries in their place."""
    for column, values in zip(hits, others, strict=True):
        column[queries] = values


def _no_hits(queries: int, top: int) -> Nearest:
    return Nearest(
        np.full((queries, top), -1, np.int64), np.full((queries, top), np.inf, np.float32)
    )
