"""Approximate indices of faiss for large galleries: IVF-PQ and HNSW (docs/retrieval.md)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demo_sdtps.config.cli import print_lines
from demo_sdtps.retrieval.nearest import Nearest, among, nearest
from demo_sdtps.retrieval.table import FeatureBlocks

CODES = 256  # values of a byte of a code of IVF-PQ, and the fewest samples that it is trained on
MOST_BYTES = 128  # of a code
PER_LIST = 64  # samples for the training, per list
PROBES = 64  # lists that are searched
NEIGHBOURS, BREADTH = 32, 100  # of HNSW: of a node, and candidates while it is built
LEAST, PER_HIT = 100, 10  # candidates, at least and per hit
SAMPLE = 100  # queries by which recall is measured, at most


def approximate(
    kind: str, queries: np.ndarray, gallery: FeatureBlocks, names: Sequence[str], top: int
) -> Nearest:
    """`nearest` among candidates of an approximate index, whose recall is printed.

    `gallery` are triplets of a set of modalities in the columns of `queries` (Q, D). Recall is measured by some of the queries,
    as it takes an exact search.
    """
    key = f"{kind}, {gallery.name}"
    if kind == "ivfpq" and len(gallery) < CODES:
        print_lines(f"{key}: exact search, as there are {len(gallery)} triplets")
        return nearest(queries, gallery, names, top)
    index, order = build_index(kind, gallery)
    places = find_candidates(index, queries, min(len(gallery), max(LEAST, PER_HIT * top)))
    hits = among(queries, gallery, names, top, np.where(places < 0, places, order[places]))
    count = min(SAMPLE, len(queries))
    sample = np.unique(np.linspace(0, len(queries) - 1, count).round().astype(int))
    exact = nearest(queries[sample], gallery, names, top)
    share = recall(Nearest(*(column[sample] for column in hits)), exact)
    against = f"against exact search (queries: {len(sample)})"
    print_lines(f"{key}: recall@{top} {share:.3f} {against}")
    return hits


def build_index(kind: str, gallery: FeatureBlocks) -> tuple[Any, np.ndarray]:
    """A faiss index of the gallery, IVF-PQ trained on a sample of it, `CODES` triplets or more, and the rows in its order."""
    import faiss

    index: Any
    width = gallery.width
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, NEIGHBOURS)
        index.hnsw.efConstruction = BREADTH
    else:
        lists = 1 << int(math.log2(math.sqrt(len(gallery))))
        most = min(MOST_BYTES, max(1, width // 8))
        size = max(size for size in range(1, most + 1) if width % size == 0)
        index = faiss.IndexIVFPQ(faiss.IndexFlatL2(width), width, lists, size, 8)
        index.nprobe = min(PROBES, lists)
        for settings in (index.cp, index.pq.cp):
            settings.min_points_per_centroid = 1  # fewer are worse, but no reason for a warning
        count = min(len(gallery), PER_LIST * max(lists, CODES))
        sample = np.random.default_rng(0).choice(len(gallery), count, replace=False)
        index.train(gallery.take(gallery.rows[np.sort(sample)]))
    order = []
    for rows, block in gallery.blocks("building the index"):
        index.add(block)
        order.append(rows)
    return index, np.concatenate(order)


def find_candidates(index: Any, queries: np.ndarray, count: int) -> np.ndarray:
    """Places (Q, count) int64 of the nearest samples, -1 for none."""
    if hasattr(index, "hnsw"):
        index.hnsw.efSearch = max(BREADTH, count)
    return index.search(queries, count)[1]


def recall(hits: Nearest, exact: Nearest) -> float:
    """Share of the hits that are as near as those of the exact search: recall@top, for hits (Q, top) of both."""
    return float((hits.distances <= exact.distances[:, -1:]).mean())
