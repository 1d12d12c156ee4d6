"""What tools/search.py does: the index of a gallery brought up to date, and the hits of each query (docs/search.md)."""
import argparse
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import FLAT, TOP, WEIGHT_EXAMPLE
from demo_sdtps.datasets.folders import Triplet, read_folder, read_query
from demo_sdtps.evaluation.command import prepare_evaluation
from demo_sdtps.retrieval.approximate import approximate, check_size
from demo_sdtps.retrieval.extractor import Extractor, make_extractor
from demo_sdtps.retrieval.gallery import Changes, Index, extraction, open_index, origin_of, readable, update
from demo_sdtps.retrieval.nearest import Hits, nearest, reranked, reranked_whole, without
from demo_sdtps.retrieval.store import LOCK
from demo_sdtps.runtime.distributed import check_equal, is_main
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import locked

MOST_RERANKED = 20_000
"""Triplets of a gallery that is re-ranked as a whole (TEST.RE_RANKING)."""


class Found(NamedTuple):
    """Queries, and the hits of each with their distances; what is wrong with images that were left out, by path."""

    queries: Sequence[Triplet]
    hits: list[list[Triplet]]
    distances: list[list[float]]
    broken: dict[str, str]


def search(arguments: argparse.Namespace, cfg: CfgNode) -> Found | None:
    """Bring the index up to date in all processes; the main one, which alone has it, searches. Raises `UserError`."""
    prepare_evaluation(cfg, WEIGHT_EXAMPLE, several=True)
    check_extra("tools/search.py", "search", {"faiss": "faiss-cpu", "jinja2": "jinja2"})
    queries = read_query(arguments.query, arguments.modality)
    check_equal(queries, "images")
    with opened(arguments, cfg) as gallery:
        queries = gallery.readable(queries)
        if not queries:
            raise UserError(f"No image of the query {arguments.query} can be read; replace one, or leave --skip_unreadable out "
                            "to see why.")
        features = gallery.features(queries)  # before the gallery, which may take hours
        gallery.update()
        return gallery.search(queries, features) if gallery.index else None


@contextmanager
def opened(arguments: argparse.Namespace, cfg: CfgNode) -> Iterator["Gallery"]:
    """The gallery of --gallery, whose index no other command can use inside. Raises `UserError`."""
    triplets = read_folder(arguments.gallery, arguments.modality)
    depths(arguments, cfg, len(triplets))
    check_equal(triplets, "images")
    folder = arguments.index or default_index(arguments.gallery)
    with ExitStack() as stack:
        index = None
        if is_main():
            stack.enter_context(locked(folder / LOCK, f"The index {folder}"))
            index = open_index(folder, arguments.gallery, origin_of(cfg, arguments.return_pattern), arguments.rebuild)
        yield Gallery(arguments, cfg, make_extractor(cfg), triplets, index)


@dataclass
class Gallery:
    """Triplets that are searched in, and their index, which the main process alone has."""

    arguments: argparse.Namespace
    cfg: CfgNode
    reid: Extractor
    triplets: Sequence[Triplet]
    index: Index | None
    by_name: dict[str, Triplet] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def readable(self, triplets: Sequence[Triplet]) -> list[Triplet]:
        """With --skip_unreadable what can be read of them."""
        return readable(triplets, self.broken) if self.arguments.skip_unreadable else list(triplets)

    def features(self, triplets: Sequence[Triplet]) -> np.ndarray:
        """Features (n, D) of triplets. Raises `UserError`."""
        return extraction(self.reid, self.arguments.return_pattern)(triplets)

    def update(self) -> None:
        """Bring the index up to date, and print what has changed. Raises `UserError`."""
        changes = update(self.index, self.triplets, self.features, self.readable)
        if self.index:
            print_lines(report(self.index, changes))
            self.by_name = {triplet.name: triplet.without(self.broken) for triplet in self.triplets}

    def search(self, queries: Sequence[Triplet], features: np.ndarray) -> Found:
        """The hits of queries with features (Q, D), by an index that is up to date. Raises `UserError`."""
        assert self.index
        arguments, names, gallery = self.arguments, self.index.names, self.index.features()
        top, deepest = depths(arguments, self.cfg, len(names))
        triplets = [self.by_name[name] for name in names]
        count = min(deepest + (not arguments.keep_self), len(names))
        if is_whole(arguments, self.cfg):
            hits = reranked_whole(features, gallery, names, count)
        else:
            hits = find(self.index, features, count, arguments.index_type)
        if not arguments.keep_self:
            files = {row: triplets[row].real_paths() for row in np.unique(hits.rows).tolist()}
            hits = without(hits, np.array([[not own.isdisjoint(files[row]) for row in rows] for own, rows in
                                           zip((query.real_paths() for query in queries), hits.rows.tolist(), strict=True)]))
        if arguments.re_rank:
            hits = reranked(features, gallery, names, Hits(*(part[:, :deepest] for part in hits)), top)
        rows, distances = (part[:, :top] for part in hits)
        return Found(queries, [[triplets[row] for row in line[line >= 0]] for line in rows],
                     [line[np.isfinite(line)].tolist() for line in distances], self.broken)


def is_whole(arguments: argparse.Namespace, cfg: CfgNode) -> bool:
    """Whether queries and gallery are re-ranked as a whole, as in the evaluation."""
    return cfg.TEST.RE_RANKING == "yes" and not arguments.re_rank


def depths(arguments: argparse.Namespace, cfg: CfgNode, gallery: int) -> tuple[int, int]:
    """Hits per query, and those that are re-ranked for them. Raises `UserError` where the gallery is too small, or too large to
    be re-ranked."""
    top = arguments.top or min(TOP, gallery)
    if not gallery:
        raise UserError(f"No image of the gallery {arguments.gallery} can be read; replace some.")
    if top > gallery:
        raise UserError(f"--top is {top}, but the gallery {arguments.gallery} has {gallery} triplets; give at most as many.")
    if arguments.re_rank and arguments.re_rank < top:
        raise UserError(f"--re_rank is {arguments.re_rank}, fewer than the {top} hits to show (--top); give at least as many.")
    if is_whole(arguments, cfg) and (gallery > MOST_RERANKED or arguments.index_type != FLAT):
        raise UserError(f"TEST.RE_RANKING is yes, but a gallery of {gallery} triplets with --index_type {arguments.index_type} "
                        f"is not re-ranked as a whole (flat, at most {MOST_RERANKED}); give --re_rank K for the K nearest of "
                        "each query, or TEST.RE_RANKING no.")
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
