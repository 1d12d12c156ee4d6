"""mAP and CMC of a gallery that need not fit into the memory: its blocks are read one after the other (docs/retrieval.md)."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from demo_sdtps.evaluation.metrics import (
    CHUNK_ELEMENTS,
    Ranking,
    counts_within,
    distances_of,
    own_samples_of,
    rank_in_group,
    ranking_of,
    squared_lengths,
)
from demo_sdtps.retrieval.store import Stack
from demo_sdtps.runtime.progress import progress


@torch.no_grad()
def evaluate_stream(
    query_features: torch.Tensor,
    gallery: Stack,
    ids: Sequence[Any],
    keys: Sequence[Any],
    max_rank: int = 50,
) -> Ranking:
    """`evaluate_ranking` of queries (Q, D) in memory and a gallery (G, D) in blocks, by the same rules.

    `ids` and `keys` are integers of the queries (Q,) and of the gallery (G,): the gallery samples of a query's identity and key
    (camera or scene) are excluded. Equal features may differ in the last bit of their distances. The gallery is read
    once, and its samples of the queries' identities once before. Memory is that of the queries, of a block, and of some 60
    bytes for each pair of a query and a gallery sample of its identity. Raises `ValueError` and `UserError` as
    `evaluate_ranking`.
    """
    query = query_features.float()
    row, own_rows, match = own_samples_of((len(query), len(gallery)), ids, keys)(slice(None))
    by_own = own_rows.argsort(kind="stable")
    row, own_rows, match = row[by_own], own_rows[by_own], match[by_own]
    value = _pair_distances(query, gallery, row, own_rows)
    if np.isnan(value).any():
        raise ValueError("Some distances are not numbers; check that features are finite.")
    limits = value[match][np.lexsort((value[match], row[match]))]
    matches = np.bincount(row[match], minlength=len(query))
    ahead = np.zeros(len(limits), np.int64)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for start, block in progress(gallery, "ranking", len(gallery.blocks), unit="block"):
            for first, block_rows in _row_slices(torch.from_numpy(block), len(query)):
                distance = distances_of(query, block_rows, squared_lengths(block_rows)).numpy()
                # Matches are counted by `rank_in_group`, other samples of the query's identity are excluded.
                bounds = [start + first, start + first + len(block_rows)]
                inside = slice(*np.searchsorted(own_rows, bounds))
                distance[row[inside], own_rows[inside] - start - first] = np.inf
                ahead += counts_within(distance, limits, matches, pool)
    return ranking_of(ahead + rank_in_group(matches), matches, max_rank)


def _pair_distances(
    query: torch.Tensor, gallery: Stack, row: np.ndarray, own_rows: np.ndarray
) -> np.ndarray:
    """Squared distances (n,) float32 of queries, by their rows (n,), and gallery samples, by ascending indices (n,)."""
    value = np.empty(len(own_rows), np.float32)
    samples, place = np.unique(own_rows, return_inverse=True)
    size = max(1, CHUNK_ELEMENTS // (4 * query.shape[1]))
    for start in progress(range(0, len(samples), size), "matches", unit="block"):
        block = torch.from_numpy(gallery.take(samples[start : start + size]))
        for first, block_rows in _row_slices(block, len(query)):
            bounds = [start + first, start + first + len(block_rows)]
            inside = slice(*np.searchsorted(place, bounds))
            distance = distances_of(query, block_rows, squared_lengths(block_rows)).numpy()
            value[inside] = distance[row[inside], place[inside] - start - first]
    return value


def _row_slices(block: torch.Tensor, queries: int) -> Iterator[tuple[int, torch.Tensor]]:
    """A block in parts whose distances to all queries are at most `CHUNK_ELEMENTS`, and the first row of each."""
    size = max(1, CHUNK_ELEMENTS // max(1, queries))
    return ((start, block[start : start + size]) for start in range(0, len(block), size))
