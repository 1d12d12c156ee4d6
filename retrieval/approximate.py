"""Approximate indices of faiss for large galleries: IVF-PQ and HNSW (docs/search.md)."""
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from demo_sdtps.config import UserError
from demo_sdtps.retrieval.gallery import Index
from demo_sdtps.retrieval.nearest import Hits, among, nearest
from demo_sdtps.retrieval.store import Stack
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress

FLAT, KINDS = "flat", ("ivfpq", "hnsw")
CODES = 256  # values of a byte of a code of IVF-PQ, and the fewest samples that it is trained on
MOST_BYTES = 128  # of a code
PER_LIST = 64  # samples for the training, per list
PROBES = 64  # lists that are searched
NEIGHBOURS, BREADTH = 32, 100  # of HNSW: of a node, and candidates while it is built
MOST_DEAD = 0.1  # share of removed samples up to which an index is kept
LEAST, PER_HIT = 100, 10  # candidates, at least and per hit
SAMPLE = 100  # queries by which recall is measured, at most
GROWTH = 16  # the number of samples over the square of the lists from which IVF-PQ is trained anew; at first it is 1 to 4


def approximate(index: Index, kind: str, queries: np.ndarray, top: int) -> tuple[Hits, str]:
    """`nearest` among candidates of an approximate index, and a line on its recall.

    Recall is measured by some of the queries (Q, D) when the approximate index was written, and by more when there are more:
    it takes an exact search. It is kept in the index. Raises `UserError` where that cannot be written.
    """
    gallery, names, measured = index.features(), index.names, index.store.record["recall"]
    found = among(queries, gallery, names, top, candidates(index, kind), min(len(gallery), max(LEAST, PER_HIT * top)))
    sample = np.unique(np.linspace(0, len(queries) - 1, min(SAMPLE, len(queries))).round().astype(int))
    if len(sample) > measured.get(kind, (0,))[0]:
        share = recall(Hits(*(part[sample] for part in found)), nearest(queries[sample], gallery, names, top))
        measured[kind] = len(sample), f"recall@{top} {share:.3f} against exact search (queries: {len(sample)})"
        index.commit()
    return found, f"{kind}: {measured[kind][1]}"


def candidates(index: Index, kind: str) -> Callable[[np.ndarray, int], np.ndarray]:
    """Function from queries (Q, D) and a count to the rows of the nearest samples by an approximate index, (Q, count) int64, -1
    for none; the index is made, or extended by new triplets, and written, if needed. Raises `UserError`."""
    import faiss

    numbers, gallery, record = index.numbers, index.features(), index.store.record
    found = _read(index.store.folder, record["faiss"].get(kind))
    if found is None or _is_outdated(found, numbers):
        found, done = make(kind, gallery), np.zeros(len(gallery), bool)
    else:
        done = np.isin(numbers, faiss.vector_to_array(found.id_map))
    if not done.all():
        extend(found, gallery, numbers, ~done)
        record["faiss"][kind] = f"{kind}-{secrets.token_hex(8)}.faiss"
        record["recall"].pop(kind, None)
        with atomic_write(index.store.folder / record["faiss"][kind]) as path:
            _write(found, str(path))
        index.commit()
    order = numbers.argsort()

    def rows_of(queries: np.ndarray, count: int) -> np.ndarray:
        numbers_found = search(found, queries, count)
        place = numbers[order].searchsorted(numbers_found).clip(max=len(order) - 1)
        return np.where(numbers[order][place] == numbers_found, order[place], -1)

    return rows_of


def check_size(kind: str, count: int) -> None:
    """Raise `UserError` where a gallery of `count` triplets is too small for this kind."""
    if kind == "ivfpq" and count < CODES:
        raise UserError(f"The gallery has {count} triplets, but --index_type ivfpq is trained on {CODES} or more; use flat, "
                        "which is exact.")


def make(kind: str, gallery: Stack) -> Any:
    """An empty faiss index, IVF-PQ trained on a sample of the gallery (`check_size`)."""
    import faiss

    width = gallery.width
    if kind == "hnsw":
        graph = faiss.IndexHNSWFlat(width, NEIGHBOURS)
        graph.hnsw.efConstruction = BREADTH
        return faiss.IndexIDMap(graph)
    lists = 1 << int(math.log2(math.sqrt(len(gallery))))
    size = max(size for size in range(1, min(MOST_BYTES, max(1, width // 8)) + 1) if width % size == 0)
    coded = faiss.IndexIVFPQ(faiss.IndexFlatL2(width), width, lists, size, 8)
    coded.nprobe = min(PROBES, lists)
    for settings in (coded.cp, coded.pq.cp):
        settings.min_points_per_centroid = 1  # fewer are worse, but no reason for a warning on stderr
    count = min(len(gallery), max(PER_LIST * lists, PER_LIST * CODES))
    coded.train(gallery.take(np.sort(np.random.default_rng(0).choice(len(gallery), count, replace=False))))
    return faiss.IndexIDMap(coded)


def extend(found: Any, gallery: Stack, numbers: np.ndarray, chosen: np.ndarray) -> None:
    """Add the rows of the gallery that `chosen` (n,) has, under their `numbers` (n,)."""
    for start, block in progress(gallery, "building the approximate index", len(gallery.blocks), unit="block"):
        rows = np.flatnonzero(chosen[start:start + len(block)])
        if len(rows):
            found.add_with_ids(block[rows], numbers[start + rows])


def search(found: Any, queries: np.ndarray, count: int) -> np.ndarray:
    """Numbers (Q, count) of the nearest samples, -1 for none."""
    inner = within(found)
    if hasattr(inner, "hnsw"):
        inner.hnsw.efSearch = max(BREADTH, count)
    return found.search(queries, count)[1]


def within(found: Any) -> Any:
    """The IVF-PQ or HNSW index itself, without its map of numbers."""
    import faiss

    return faiss.downcast_index(found.index)


def recall(found: Hits, exact: Hits) -> float:
    """Share of the hits that are as near as those of the exact search: recall@top, for hits (Q, top) of both."""
    return float((found.distances <= exact.distances[:, -1:]).mean())


def _is_outdated(found: Any, numbers: np.ndarray) -> bool:
    """Whether many samples of the faiss index were removed since, or it was trained for far fewer."""
    import faiss

    inner = within(found)
    is_outgrown = hasattr(inner, "nlist") and len(numbers) >= GROWTH * inner.nlist**2
    return is_outgrown or not np.isin(faiss.vector_to_array(found.id_map), numbers).mean() >= 1 - MOST_DEAD


def _read(folder: Path, name: str | None) -> Any:
    """A faiss index of its file; None where there is none, or it is damaged: it is made anew then."""
    import faiss

    try:
        return faiss.read_index(str(folder / name)) if name else None
    except RuntimeError:
        return None


def _write(found: Any, path: str) -> None:
    import faiss

    try:
        faiss.write_index(found, path)
    except RuntimeError as error:  # a full disk
        raise OSError(str(error)) from None
