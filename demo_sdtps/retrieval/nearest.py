"""The nearest gallery samples of queries: exact, from candidates, and re-ranked (docs/search.md).

Shapes: Q queries, n gallery samples, features (…, D) float32. Distances are those of the evaluation, squared Euclidean ones,
computed in float64 for the samples that are shown: samples of equal features have equal distances from a query, wherever they
lie, and are in the order of the gallery's `ranks`.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from demo_sdtps.config.common import FALSE_ACCEPT
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

if TYPE_CHECKING:
    from demo_sdtps.retrieval.calibration import Calibration

SPARE = 16  # candidates beyond those that are asked for, at least
ROUNDING = 5e-6  # of (|q| + |g|)², by which a product in float32 may be wrong
FLAT_QUERIES = 1024  # that are compared with a block at a time
NEAREST_ELEMENTS = 1 << 24  # numbers of the features that are compared at a time

Search = Callable[[np.ndarray, FeatureBlocks, int], Nearest]
"""`nearest`, or one like it."""


def search_sets(
    comparison: Comparison,
    query: Side,
    gallery: Gallery,
    top: int,
    search: Search,
    calibration: "Calibration | None" = None,
    rate: float = FALSE_ACCEPT,
) -> Hits:
    """The `top` nearest for each query, one list of all sets of modalities, filled up by row -1 where fewer have a distance.

    Each set of the queries is compared with each one of the gallery by `search`, in the columns of both. Where the gallery's
    differ, hits are ordered by scaled distances (`cohort_scales`), their `scores`; with a calibration those that are unknown at
    a rate of false acceptance come last.
    """
    queries, present = query
    check_finite(queries, "features of queries")
    shape = len(queries), top
    hits = Hits(np.full(shape, -1, np.int64), np.full(shape, np.inf, np.float32))
    hits.scores = hits.distances.copy()
    columns: list[np.ndarray] = [*hits, hits.scores]
    if calibration:
        comparison = replace(comparison, scales=calibration.scales())
        hits.probability, hits.is_unknown = np.full(shape, np.nan), np.ones(shape, bool)
        columns += [hits.probability, hits.is_unknown]
    scales = cohort_scales(comparison, query, gallery.present, gallery.take)
    for one, places in comparison.groups(present).items():
        lists = []
        for other, rows in comparison.groups(gallery.present).items():
            if not comparison.is_defined(one, other):
                continue
            shared = one & other
            name = f"{set_name(one)} in {set_name(other)} by {set_name(shared)}, {comparison.how}"
            view = gallery.features.view(rows, partial(comparison.view, shared=shared), name)
            vectors = comparison.view(queries[places], shared).numpy()
            near = search(vectors, view, min(top, len(view)))
            mean, deviation = scales.get((one, other), (0.0, 1.0))
            scores = (torch.from_numpy(near.distances) - mean) / deviation
            lists.append((*near, scores.numpy()))
        if not lists:
            continue
        values = [np.concatenate(column, axis=1) for column in zip(*lists, strict=True)]
        first = values[2]
        if calibration:
            sets = present[places][:, None], gallery.present[values[0]]
            values += calibration.judge(values[1], *sets, rate)
            first = known_first(first, values[-1])
        order = _order(first, gallery.features.ranks[values[0]], top)
        for column, value in zip(columns, values, strict=True):
            column[places, : order.shape[1]] = np.take_along_axis(value, order, axis=1)
    return hits


def known_first(scores: np.ndarray, is_unknown: np.ndarray) -> np.ndarray:
    """What orders hits (Q, count) by their scores, those that are unknown after all others."""
    values = np.where(np.isfinite(scores), scores, 0).astype(np.float64)
    span = 1 + np.ptp(values, axis=1, keepdims=True)
    return scores + span * is_unknown


def nearest(
    queries: np.ndarray, gallery: FeatureBlocks, top: int, count: int | None = None
) -> Nearest:
    """The `top` nearest rows of `gallery` for each query (Q, D), top ≤ n, by comparison with all of it.

    Products of matrices find `count` candidates; they are enough where the last of them is beyond the last hit by more than
    their rounding, and more are asked for otherwise, so ties at the last rank are decided by `ranks` too.
    """
    count = min(count or max(2 * top, top + SPARE), len(gallery))
    least, rows = _flat(queries, gallery, count)
    hits = _order_hits(rows, distances(queries, gallery, rows), gallery, top)
    is_short = (least <= hits.distances[:, -1]) & (count < len(gallery))
    return _search_again(hits, is_short, queries, gallery, 2 * count)


def among(queries: np.ndarray, gallery: FeatureBlocks, top: int, rows: np.ndarray) -> Nearest:
    """`nearest` of candidate rows (Q, count ≥ top) int64, -1 for none. Queries with fewer than `top` candidates are compared
    with the whole gallery."""
    hits = _order_hits(rows, distances(queries, gallery, rows), gallery, top)
    return _search_again(hits, hits.rows[:, -1] < 0, queries, gallery)


def _search_again(
    hits: Nearest,
    is_short: np.ndarray,
    queries: np.ndarray,
    gallery: FeatureBlocks,
    count: int | None = None,
) -> Nearest:
    """Hits, of which some are those of `nearest` by so many candidates."""
    if is_short.any():
        others = nearest(queries[is_short], gallery, hits.rows.shape[1], count)
        for column, values in zip(hits, others, strict=True):
            column[is_short] = values
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
    return _order_hits(hits.rows, refined, gallery.features, top)


def rerank_all(comparison: Comparison, query: Side, gallery: Gallery, top: int) -> Nearest:
    """The `top` first after k-reciprocal re-ranking of all queries and the whole gallery, which the memory must hold."""
    rows = gallery.features.rows
    matrix = _reranked(comparison, query, gallery, rows)
    return _order_hits(np.broadcast_to(rows, matrix.shape), matrix, gallery.features, top)


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
    """The rows (Q, count) of the smallest distances by products in float32; before them what the true distances of all other
    rows are beyond, (Q,)."""
    sides = torch.from_numpy(queries).split(FLAT_QUERIES)
    values = [side.new_full((len(side), count), torch.inf) for side in sides]
    places = [torch.full((len(side), count), -1) for side in sides]
    longest = torch.zeros(())
    for rows, block in gallery.blocks("searching"):
        others = torch.from_numpy(block if block.flags.writeable else block.copy())
        lengths, numbers = others.square().sum(1), torch.from_numpy(rows)
        longest = torch.maximum(longest, lengths.amax())
        for side, best, nearest_rows in zip(sides, values, places, strict=True):
            products = torch.addmm(lengths, side, others.T, alpha=-2)
            # few queries have a nearer one in a later block; the others are not sorted
            closer = torch.nonzero(products.amin(1) < best[:, -1])[:, 0]
            near, index = products[closer].topk(min(count, len(block)), largest=False)
            near, order = torch.cat([best[closer], near], 1).topk(count, largest=False)
            index = torch.cat([nearest_rows[closer], numbers[index]], 1)
            best[closer], nearest_rows[closer] = near, index.gather(1, order)
    lengths = torch.from_numpy(queries).square().sum(1)
    rounding = ROUNDING * (lengths.sqrt() + longest.sqrt()).square()
    least = torch.cat(values)[:, -1] + lengths - rounding
    return least.numpy(), torch.cat(places).numpy()


def _order_hits(rows: np.ndarray, values: np.ndarray, gallery: FeatureBlocks, top: int) -> Nearest:
    """The `top` first of each line of candidates (Q, count ≥ top), by their distances `values`."""
    order = _order(values, gallery.ranks[rows], top)
    return Nearest(*(np.take_along_axis(column, order, axis=1) for column in (rows, values)))


def _order(values: np.ndarray, ranks: np.ndarray, top: int) -> np.ndarray:
    """Where the `top` first of each line (Q, count) are, by `values`, and equal ones by `ranks`."""
    return np.lexsort((ranks, values))[:, :top]
