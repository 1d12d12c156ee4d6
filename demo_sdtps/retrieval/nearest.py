"""The nearest gallery samples of queries, by exact search, and their re-ranking (docs/search.md).

Shapes: Q queries, n gallery samples, features (…, D) float32. Distances are those of the evaluation, squared Euclidean ones,
computed in float64 for the samples that are shown: samples of equal features have equal distances from a query, wherever they
lie, and are in the order of the gallery's rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from demo_sdtps.config.common import FALSE_ACCEPT
from demo_sdtps.evaluation.distances import Comparison, Side, check_finite, cohort_scales
from demo_sdtps.evaluation.reranking import rerank
from demo_sdtps.retrieval.features import Hits, Nearest
from demo_sdtps.runtime.progress import progress

if TYPE_CHECKING:
    from demo_sdtps.retrieval.calibration import Calibration

READ_ELEMENTS = 1 << 21  # numbers of features in memory at a time, 4 bytes each
PRODUCT_ELEMENTS = 1 << 24  # products, or differences, of queries and gallery in memory at a time
SPARE = 16  # candidates beyond those that are asked for, at least
ROUNDING = 5e-6  # of (|q| + |g|)², by which a product in float32 may be wrong


@dataclass(frozen=True)
class Gallery:
    """Features (n, D) float32 of n triplets, in memory, and which of MODALITIES are `present` in each, (n, 3) bool."""

    features: Any
    present: np.ndarray

    def __len__(self) -> int:
        return len(self.present)

    def reading_order(self) -> np.ndarray:
        """All rows (n,) in the order in which their features are read the fastest."""
        return np.arange(len(self))

    def take(self, rows: np.ndarray) -> torch.Tensor:
        """The features (m, D) float32 of distinct rows (m,)."""
        return self.features[rows]


@dataclass(frozen=True)
class View:
    """Some `rows` of a gallery, ascending indices (m,), in the columns (m, d) that `columns` makes of their features."""

    gallery: Gallery
    rows: np.ndarray
    columns: Callable[[torch.Tensor], torch.Tensor] = lambda features: features

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: np.ndarray) -> torch.Tensor:
        """The columns (m, d) float32 of distinct rows (m,) of the gallery."""
        return self.columns(self.gallery.take(rows))

    def blocks(self, most: int) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
        """All rows, in parts (b,) of at most so many, and their columns (b, d) float32, with a progress bar."""
        order = self.gallery.reading_order()
        rows = order[np.isin(order, self.rows)]
        size = max(1, min(most, READ_ELEMENTS // self.take(rows[:1]).shape[1]))
        for start in progress(range(0, len(rows), size), "searching", unit="block"):
            block = rows[start : start + size]
            yield block, self.take(block)


def search_sets(
    comparison: Comparison,
    query: Side,
    gallery: Gallery,
    top: int,
    calibration: "Calibration | None" = None,
    rate: float = FALSE_ACCEPT,
) -> Hits:
    """The `top` nearest for each query, one list of all sets of modalities, filled up by row -1 where fewer have a distance.
    Each set of the queries is compared with each one of the gallery in the columns of both. Where the gallery's differ, hits
    are ordered by scaled distances (`cohort_scales`), their `scores`; with a calibration those that are unknown at a rate of
    false acceptance come last."""
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
            columns_of_both = partial(comparison.view, shared=one & other)
            view = View(gallery, np.arange(len(gallery))[rows], columns_of_both)
            near = nearest(columns_of_both(queries[places]).numpy(), view, min(top, len(view)))
            mean, deviation = scales.get((one, other), (0.0, 1.0))
            scores = (torch.from_numpy(near.distances) - mean) / deviation
            lists.append((*near, scores.numpy()))
        if not lists:
            continue
        values = [np.concatenate(column, axis=1) for column in zip(*lists, strict=True)]
        keys = [values[0], values[2]]  # the last one orders first
        if calibration:
            sets = present[places][:, None], gallery.present[values[0]]
            values += calibration.judge(values[1], *sets, rate)
            keys.append(values[-1])
        order = np.lexsort(keys)[:, :top]
        for column, value in zip(columns, values, strict=True):
            column[places, : order.shape[1]] = np.take_along_axis(value, order, axis=1)
    return hits


def nearest(queries: np.ndarray, gallery: View, top: int, count: int = 0) -> Nearest:
    """The `top` nearest rows of `gallery` for each query (Q, D), top ≤ n. Products of matrices find `count` candidates; they
    are enough where the last of them is beyond the last hit by more than their rounding, and more are asked for otherwise, so
    that ties at the last rank are decided by the order of the rows too."""
    count = min(count or max(2 * top, top + SPARE), len(gallery))
    least, rows = _smallest_products(queries, gallery, count)
    hits = _order_hits(rows, distances(queries, gallery, rows), top)
    is_short = (least <= hits.distances[:, -1]) & (count < len(gallery))
    if is_short.any():
        others = nearest(queries[is_short], gallery, top, count=2 * count)
        for column, values in zip(hits, others, strict=True):
            column[is_short] = values
    return hits


def rerank_hits(how: Comparison, query: Side, gallery: Gallery, hits: Nearest, top: int) -> Nearest:
    """The `top` first of each query's hits after k-reciprocal re-ranking of these alone, with the re-ranked distances."""
    refined = np.full(hits.rows.shape, np.inf, np.float32)
    for number, rows in enumerate(progress(hits.rows, "re-ranking", unit="query")):
        order = rows.argsort()[np.count_nonzero(rows < 0) :]
        one = query[0][number : number + 1], query[1][number : number + 1]
        near = gallery.take(rows[order]), gallery.present[rows[order]]
        refined[number, order] = rerank(how, one, near).numpy()[0]
    return _order_hits(hits.rows, refined, top)


def distances(queries: np.ndarray, gallery: View, rows: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (Q, count) float32 of queries (Q, D) from gallery rows (Q, count)."""
    values = np.empty(rows.shape, np.float32)
    size = max(1, PRODUCT_ELEMENTS // (rows.shape[1] * queries.shape[1]))
    for start in range(0, len(rows), size):
        unique, places = np.unique(rows[start : start + size], return_inverse=True)
        features = gallery.take(unique).double().numpy()
        for number, line in enumerate(places.reshape(-1, rows.shape[1]), start):
            values[number] = np.square(features[line] - queries[number]).sum(axis=1)
    return values


def _smallest_products(
    queries: np.ndarray, gallery: View, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows (Q, count) of the smallest distances by products in float32; before them a bound of the others' (Q,)."""
    side, longest = torch.from_numpy(queries), torch.zeros(())
    best = torch.full((len(side), count), torch.inf)
    places = torch.full((len(side), count), -1)
    for rows, block in gallery.blocks(PRODUCT_ELEMENTS // len(side)):
        lengths, numbers = block.square().sum(1), torch.from_numpy(rows).expand(len(side), -1)
        longest = torch.maximum(longest, lengths.amax())
        products = torch.cat([best, torch.addmm(lengths, side, block.T, alpha=-2)], 1)
        best, order = products.topk(count, largest=False)
        places = torch.cat([places, numbers], 1).gather(1, order)
    lengths = side.square().sum(1)
    rounding = ROUNDING * (lengths.sqrt() + longest.sqrt()).square()
    return (best[:, -1] + lengths - rounding).numpy(), places.numpy()


def _order_hits(rows: np.ndarray, values: np.ndarray, top: int) -> Nearest:
    """The `top` first of each line of candidates (Q, count ≥ top), by their distances `values`, equal ones by their rows."""
    order = np.lexsort((rows, values))[:, :top]
    return Nearest(*(np.take_along_axis(column, order, axis=1) for column in (rows, values)))
