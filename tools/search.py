"""Search own images: python tools/search.py --weight W --gallery FOLDER --query FOLDER_OR_FILE --output hits.html"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
from yacs.config import CfgNode

from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.cli import add_output, config_parser, parse, positive_int, print_lines, run
from demo_sdtps.datasets.folders import Triplet, read_folder, read_query
from demo_sdtps.evaluation.command import EXAMPLE, prepare_evaluation, weight_flag
from demo_sdtps.retrieval.approximate import FLAT, KINDS, approximate, check_size
from demo_sdtps.retrieval.extractor import make_extractor
from demo_sdtps.retrieval.gallery import Changes, Index, extraction, open_index, origin_of, update
from demo_sdtps.retrieval.nearest import COLUMNS, Hits, nearest, reranked, write_csv
from demo_sdtps.retrieval.store import LOCK
from demo_sdtps.runtime.distributed import broadcast_from_main, check_equal, init_distributed, is_main
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import atomic_write, locked

TOP = 10
PRINTED = 5  # queries whose hits are printed
SQUARED = "squared Euclidean distance of L2-normalised features (0 to 4), by which the evaluation ranks"
RERANKED = "k-reciprocal distance among the query and its first hits (0 to 1)"


def main() -> None:
    parser = config_parser(
        "Find the images of a gallery that are most like each query. FOLDER has the subfolders RGB, NI and TI with images of "
        "equal names; any of them, or any image, may be missing. Images need no labels and no naming rule; their cameras are "
        "unknown, so the mean of the model's is taken. The features of the gallery are kept in an index; images that are new, "
        "changed or removed update it. Without --output and --csv the hits of the first queries are printed.",
        epilog=f"distance: {SQUARED}; with --re_rank the {RERANKED}.", checkpoint=weight_flag())
    parser.add_argument("--gallery", type=Path, required=True, metavar="FOLDER", help="images to search in")
    parser.add_argument("--query", type=Path, required=True, metavar="PLACE",
                        help="a FOLDER like that of the gallery, or one image such as FOLDER/RGB/x.jpg, which is searched for "
                             "together with its siblings in FOLDER/NI and FOLDER/TI")
    parser.add_argument("--top", type=positive_int, metavar="N",
                        help=f"hits per query (default: {TOP}, or all of a smaller gallery)")
    add_output(parser, "--output", ".html", help="write a page with queries, hits and distances, a single file for any browser")
    add_output(parser, "--csv", ".csv", help=f"write the columns {','.join(COLUMNS)}; files are the first of their triplets")
    parser.add_argument("--index", type=Path, metavar="DIR",
                        help="folder of the gallery's index (default: one below runs/search for each gallery); an index of "
                             "other weights, keys or images, or a damaged one, is replaced with --rebuild only")
    parser.add_argument("--rebuild", action="store_true", help="make an index anew that is damaged, or of other weights, keys "
                        "or images: all features of the gallery are extracted again")
    parser.add_argument("--index_type", choices=(FLAT, *KINDS), default=FLAT,
                        help="flat: exact; ivfpq, hnsw: approximate and faster for millions of images, with the recall against "
                             "exact search told (default: flat)")
    parser.add_argument("--re_rank", type=positive_int, metavar="K",
                        help="order the K nearest of each query by k-reciprocal re-ranking, and show the first of them")
    parser.add_argument("--return_pattern", type=int, choices=RETURN_PATTERNS, default=3,
                        help="features: 1 original, 2 enhanced, 3 both (default: 3)")
    with init_distributed():
        arguments, own = parse(parser)
        search(arguments, broadcast_from_main(lambda: own))


def search(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Bring the index up to date in all processes; the main one, which alone has it, searches and writes."""
    prepare_evaluation(cfg, EXAMPLE, several=True)
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
            return
        print_lines(report(index, changes))
        hits = find(index, features, deepest, arguments.index_type)
        if arguments.re_rank:
            hits = reranked(features, index.features(), index.names, hits, top)
        names = index.names
    by_name = {triplet.name: triplet for triplet in gallery}
    show(arguments, queries, [[by_name[names[row]] for row in rows] for rows in hits.rows], hits.distances)


def show(arguments: argparse.Namespace, queries: Sequence[Triplet], found: Sequence[Sequence[Triplet]],
         distances: np.ndarray) -> None:
    """Write the hits of each query with their distances (Q, top) to --csv and --output, all or nothing, or print them. Raises
    `UserError`."""
    lines: list[str] = []
    with ExitStack() as stack:
        if arguments.output:
            from demo_sdtps.reports.search_page import page_of

            page, shown = page_of(queries, found, distances, f"{arguments.gallery}", RERANKED if arguments.re_rank else SQUARED)
            # A file name may have bytes that are not UTF-8.
            content = page.encode(errors="backslashreplace")
            stack.enter_context(atomic_write(arguments.output)).write_bytes(content)
            lines = [f"Wrote {arguments.output}, {len(content) / 2**20:.1f} MiB: {shown}"]
        if arguments.csv:
            write_csv(stack.enter_context(atomic_write(arguments.csv)), [query.file for query in queries],
                      [[hit.file for hit in hits] for hits in found], distances)
            lines = [f"Wrote {arguments.csv}, hits: {distances.size}", *lines]
    print_lines(*(lines or table(queries, found, distances)))


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


def table(queries: Sequence[Triplet], found: Sequence[Sequence[Triplet]], distances: np.ndarray) -> list[str]:
    """Lines of the hits of the first queries."""
    lines = []
    for query, hits, line in list(zip(queries, found, distances, strict=True))[:PRINTED]:
        lines += ["", query.file, *(f"{rank:6}  {distance:8.4f}  {hit.file}"
                                    for rank, (hit, distance) in enumerate(zip(hits, line, strict=True), start=1))]
    left = len(queries) - PRINTED
    return [*lines, "", f"… queries left out: {left}; --csv and --output write all"] if left > 0 else lines


if __name__ == "__main__":
    run(main)
