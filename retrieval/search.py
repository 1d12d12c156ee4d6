"""What tools/search.py does: the index of a gallery brought up to date, and the hits of each query (docs/search.md)."""
import argparse
import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import FLAT, TOP, WEIGHT_EXAMPLE
from demo_sdtps.datasets.folders import Triplet, read_folder, read_query
from demo_sdtps.evaluation.command import prepare_evaluation
from demo_sdtps.retrieval.approximate import approximate, check_size
from demo_sdtps.retrieval.extractor import make_extractor
from demo_sdtps.retrieval.gallery import Changes, Index, extraction, open_index, origin_of, update
from demo_sdtps.retrieval.nearest import Hits, nearest, reranked
from demo_sdtps.retrieval.store import LOCK
from demo_sdtps.runtime.distributed import check_equal, is_main
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import locked

Found = tuple[Sequence[Triplet], Sequence[Sequence[Triplet]], np.ndarray]
"""Queries, the hits of each, and their distances (Q, top)."""


def search(arguments: argparse.Namespace, cfg: CfgNode) -> Found | None:
    """Bring the index up to date in all processes; the main one, which alone has it, searches. Raises `UserError`."""
    prepare_evaluation(cfg, WEIGHT_EXAMPLE, several=True)
    check_extra("tools/search.py", "search", {"faiss": "faiss-cpu", "jinja2": "jinja2"})
    gallery, queries = read_folder(arguments.gallery), read_query(arguments.query)
    top, deepest = depths(arguments, len(gallery))
    folder = arguments.index or default_index(arguments.gallery)
    check_equal((gallery, queries), "images")
    with ExitStack() as stack:
        index = None
        if is_main():
            stack.enter_context(locked(folder / LOCK, f"The index {folder}"))
            index = open_index(folder, arguments.gallery, origin_of(cfg, arguments.return_pattern), arguments.rebuild)
        extract = extraction(make_extractor(cfg), arguments.return_pattern)
        features = extract(queries)  # before the gallery, which may take hours
        changes = update(index, gallery, extract)
        if index is None:
            return None
        print_lines(report(index, changes))
        hits = find(index, features, deepest, arguments.index_type)
        if arguments.re_rank:
            hits = reranked(features, index.features(), index.names, hits, top)
        names = index.names
    by_name = {triplet.name: triplet for triplet in gallery}
    return queries, [[by_name[names[row]] for row in rows] for rows in hits.rows], hits.distances


def depths(arguments: argparse.Namespace, gallery: int) -> tuple[int, int]:
    """Hits per query, and those that are re-ranked for them. Raises `UserError` where the gallery is too small."""
    top = arguments.top or min(TOP, gallery)
    if top > gallery:
        raise UserError(f"--top is {top}, but the gallery {arguments.gallery} has {gallery} triplets; give at most as many.")
    if arguments.re_rank and arguments.re_rank < top:
        raise UserError(f"--re_rank is {arguments.re_rank}, fewer than the {top} hits to show (--top); give at least as many.")
    check_size(arguments.index_type, gallery)
    return top, min(arguments.re_rank or top, gallery)


def default_index(gallery: Path) -> Path:
    """Below runs/search, by the gallery's name and a digest of its path."""
    place = gallery.resolve()
    return Path("runs", "search", f"{place.name}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}")


def report(index: Index, changes: Changes) -> str:
    """A line on the index and what has changed in it."""
    counts = ", ".join(f"{count} {name}" for name, count in changes._asdict().items() if count)
    return f"Index {index.store.folder}: {len(index.names)} triplets ({counts or 'no change'})"


def find(index: Index, features: np.ndarray, top: int, kind: str) -> Hits:
    """The `top` nearest of each query; the recall of an approximate index is printed."""
    if kind == FLAT:
        return nearest(features, index.features(), index.names, top)
    hits, note = approximate(index, kind, features, top)
    print_lines(note)
    return hits
