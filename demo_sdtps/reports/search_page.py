"""The hits of demo-sdtps search: printed, as CSV, and as a page like the report's."""

import argparse
import csv
import math
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from demo_sdtps.config import MODALITIES, with_values
from demo_sdtps.config.common import RERANKED, SQUARED, count_text, print_lines
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.reports.page import render, thumbnail
from demo_sdtps.retrieval.search import Hit, SearchResult
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress

# of the images on a page, in base64; queries beyond are left out, which the page says
THUMBNAIL_BYTES = 15 << 20
MOST_HITS = 50  # hits of a query on the page
PRINTED = 5  # queries whose hits are printed


def show(arguments: argparse.Namespace, result: SearchResult) -> None:
    """Write the hits of each query to --csv and --output, or print those of the first queries; then what was left out."""
    lines: list[str] = []
    if arguments.csv:
        write_hits(result, arguments.csv)
        lines = [f"Wrote {arguments.csv}, hits: {sum(map(len, result.hits))}"]
    if arguments.output:
        page, shown = search_page(result, arguments)
        # A file name may have bytes that are not UTF-8.
        content = page.encode(errors="backslashreplace")
        with atomic_write(arguments.output) as temporary:
            temporary.write_bytes(content)
        lines.append(f"Wrote {arguments.output}, {len(content) / 2**20:.1f} MiB: {shown}")
    print_lines(*(lines or hits_table(result)))
    if result.broken:
        print_lines(
            f"Left out, {count_text(len(result.broken), 'image')}:", *result.broken.values()
        )


def is_calibrated(result: SearchResult) -> bool:
    """Whether the hits have probabilities."""
    return any(hit.probability is not None for hits in result.hits for hit in hits)


def is_scored(result: SearchResult) -> bool:
    """Whether hits are ordered by other scores than the distances (a gallery that lacks various modalities)."""
    return any(hit.score != hit.distance for hits in result.hits for hit in hits)


def hit_text(hit: Hit) -> str:
    """The probability of a hit."""
    return "unknown" if hit.probability != hit.probability else f"P = {hit.probability:.1%}"


def write_hits(result: SearchResult, path: Path) -> None:
    """Write a line for each hit as CSV, by query and rank from 1; files are the first of their triplets, unknown values ''."""
    columns = ["query", "rank", "gallery", "distance", *["score"] * is_scored(result)]
    columns += ["probability"] * is_calibrated(result)
    # A file name may have bytes that are not UTF-8, which are written as they are.
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    with atomic_write(path) as temporary, open(temporary, "w", **options) as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for query, hits in zip(result.queries, result.hits, strict=True):
            for rank, hit in enumerate(hits, start=1):
                row = {"query": query.files[0], "rank": rank, "gallery": hit.triplet.files[0]}
                row |= {"distance": f"{hit.distance:.6f}", "score": f"{hit.score:.6f}"}
                if hit.probability is not None and not math.isnan(hit.probability):
                    row["probability"] = f"{hit.probability:.6f}"
                writer.writerow(row)


def hits_table(result: SearchResult) -> list[str]:
    """Lines of the hits of the first queries: rank, distance, probability and file."""
    lines = []
    for query, hits in list(zip(result.queries, result.hits, strict=True))[:PRINTED]:
        lines += ["", query.files[0]]
        for rank, hit in enumerate(hits, start=1):
            judged = "" if hit.probability is None else f"{hit_text(hit):10}  "
            lines.append(f"{rank:6}  {hit.distance:8.4f}  {judged}{hit.triplet.files[0]}")
    return [*lines, "", f"queries: {len(result.queries)}; --csv and --output write the hits of all"]


def search_page(result: SearchResult, arguments: argparse.Namespace) -> tuple[str, str]:
    """The page --output, and what it shows in a few words. The gallery has the name of its folder, as pages travel."""
    # the user's images are decoded as `Reid.features` does, whatever the model was trained on
    cfg = with_values(result.reid.cfg, {"DATASETS.NAMES": "Images", "TEST.MISS": "nothing"})
    triplets = [*result.queries, *(hit.triplet for hits in result.hits for hit in hits)]
    present = {name for triplet in triplets for name in triplet.modalities}
    modalities = [name for name in cfg.MODEL.MODALITIES if name in present]
    longest = max(map(len, result.hits), default=0)
    most = min(MOST_HITS, longest)
    images: dict[Triplet, str] = {}  # by triplet, in the order of the page's samples
    rows: list[tuple[Triplet, list[Hit]]] = []
    pairs = list(zip(result.queries, result.hits, strict=True))
    for query, hits in progress(pairs, "drawing", unit="query"):
        rows.append((query, hits[:most]))
        needed = [query, *(hit.triplet for hit in hits[:most])]
        images |= {one: thumbnail(cfg, one, modalities) for one in needed if one not in images}
        if sum(map(len, images.values())) > THUMBNAIL_BYTES:
            break
    shown = [f"queries: {len(result.queries)}, hits of each: {longest}"]
    if len(rows) < len(result.queries) or most < longest:
        limit = f"{len(rows)} of {len(result.queries)} queries, with at most {most} hits each"
        shown.append(f"The page shows {limit}; --csv writes all")
    folder = arguments.output.parent

    def links(triplet: Triplet) -> dict[str, str]:
        """The addresses of its images from the page."""
        paths = {name: path for name, path in zip(MODALITIES, triplet.paths, strict=True) if path}
        near = {name: Path(os.path.relpath(path, folder)) for name, path in paths.items()}
        return {name: quote(os.fsencode(path.as_posix())) for name, path in near.items()}

    page = render(
        "search.html",
        cfg,
        result.reid.model,
        dict(enumerate(images)),
        modalities,
        rows=rows,
        images=images,
        places={triplet: number for number, triplet in enumerate(images)},
        links=links,
        title=f"Hits in {arguments.gallery.resolve().name}",
        notes=[*shown[1:], *result.cameras],
        where=arguments.where,
        distance=RERANKED if arguments.re_rank else SQUARED,
        scored=is_scored(result),
        judged=is_calibrated(result),
    )
    return page, ". ".join(shown)
