"""Scores of a gallery that need not fit into the memory: its blocks are read one after the other (docs/retrieval.md)."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from demo_sdtps.evaluation.distances import Comparison, Side, scaled, scales_of, set_distances
from demo_sdtps.evaluation.metrics import (
    CHUNK_ELEMENTS,
    ROC,
    Ranking,
    counts_within,
    own_samples_of,
    rank_in_group,
    ranking_of,
)
from demo_sdtps.retrieval.store import FeatureBlocks, Gallery
from demo_sdtps.runtime.progress import progress


@torch.no_grad()
def evaluate_stream(
    comparison: Comparison,
    query: Side,
    gallery: Gallery,
    ids: Sequence[Any],
    keys: Sequence[Any],
    max_rank: int = 50,
) -> Ranking:
    """`evaluate_ranking` of queries (Q, D) in memory and a gallery (G, D) in blocks, by the same rules.

    `ids` and `keys` are integers of the queries (Q,) and of the gallery (G,): the gallery samples of a query's identity and key
    (camera or scene) are excluded. Samples without a distance by `comparison` come last. Equal features may differ in the last
    bit of their distances. The gallery is read once, and its samples of the queries' identities once before. Memory is that of
    the queries, of a block, and of some 60 bytes for each pair of a query and a gallery sample of its identity and 12 for each
    hundredth of all pairs. Raises `ValueError` and `UserError` as `evaluate_ranking`.
    """
    queries, stack = len(query[0]), gallery.features
    row, own_rows, match = own_samples_of((queries, len(gallery)), ids, keys)(slice(None))
    scales = scales_of(
        comparison, query, gallery.present, lambda rows: torch.from_numpy(stack.take(rows))
    )
    by_own = own_rows.argsort(kind="stable")
    row, own_rows, match = row[by_own], own_rows[by_own], match[by_own]

    def distances(block: torch.Tensor, samples: slice | np.ndarray) -> np.ndarray:
        """Of all queries from these gallery samples: (Q, rows)."""
        side = block, gallery.present[samples]
        return scaled(set_distances(comparison, query, side), scales, side[1]).numpy()

    value = _pair_distances(distances, queries, stack, row, own_rows)
    if np.isnan(value).any():
        raise ValueError("Some distances are not numbers; check that features are finite.")
    limits = value[match][np.lexsort((value[match], row[match]))]
    matches = np.bincount(row[match], minlength=queries)
    ahead, roc = np.zeros(len(limits), np.int64), ROC(queries * len(gallery))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for rows, block in stack.blocks("ranking"):
            for first, block_rows in _row_slices(torch.from_numpy(block), queries):
                start = rows[first]
                bounds = [start, start + len(block_rows)]
                distance = distances(block_rows, slice(*bounds))
                # Matches are counted by `rank_in_group`, other samples of the query's identity are excluded: NaN is within no
                # limit, not even the infinite one of matches without a modality in common.
                inside = slice(*np.searchsorted(own_rows, bounds))
                pairs = row[inside], own_rows[inside] - start
                roc.add(torch.from_numpy(distance), *pairs, match[inside], matches > 0)
                distance[pairs] = np.nan
                ahead += counts_within(distance, limits, matches, pool)
    return ranking_of(ahead + rank_in_group(matches), matches, max_rank, roc)


def _pair_distances(
    distances: Callable[[torch.Tensor, np.ndarray], np.ndarray],
    queries: int,
    stack: FeatureBlocks,
    row: np.ndarray,
    own_rows: np.ndarray,
) -> np.ndarray:
    """Distances (n,) float32 of queries, by their rows (n,), and gallery samples, by ascending indices (n,)."""
    value = np.empty(len(own_rows), np.float32)
    samples, place = np.unique(own_rows, return_inverse=True)
    size = max(1, CHUNK_ELEMENTS // (4 * stack.width))
    for start in progress(range(0, len(samples), size), "matches", unit="block"):
        block = torch.from_numpy(stack.take(samples[start : start + size]))
        for first, block_rows in _row_slices(block, queries):
            bounds = [start + first, start + first + len(block_rows)]
            inside = slice(*np.searchsorted(place, bounds))
            distance = distances(block_rows, samples[slice(*bounds)])
            value[inside] = distance[row[inside], place[inside] - start - first]
    return value


def _row_slices(block: torch.Tensor, queries: int) -> Iterator[tuple[int, torch.Tensor]]:
    """A block in parts whose distances to all queries are at most `CHUNK_ELEMENTS`, and the first row of each."""
    size = max(1, CHUNK_ELEMENTS // max(1, queries))
    return ((start, block[start : start + size]) for start in range(0, len(block), size))
