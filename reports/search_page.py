"""The hits of tools/search.py: printed, as CSV, and as a page with small images, one HTML file without any other."""
import argparse
import base64
import io
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment
from PIL import Image

from demo_sdtps.config import MODALITIES
from demo_sdtps.config.cli import print_lines
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import decode
from demo_sdtps.retrieval.nearest import write_csv
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress

SIDE, QUALITY = 128, 80  # longest side of an image in pixels, and its quality as JPEG
MOST_BYTES = 15 << 20  # of the images on a page; queries beyond are left out, which the page says
MOST_HITS = 50  # hits of a query on the page
PRINTED = 5  # queries whose hits are printed

PAGE = Path(__file__).resolve().parent / "templates" / "search.html"


def show(arguments: argparse.Namespace, distance: str, queries: Sequence[Triplet], found: Sequence[Sequence[Triplet]],
         distances: np.ndarray) -> None:
    """Write the hits of each query with their distances (Q, top), which are `distance`, to --csv and --output, all or nothing,
    or print them. Raises `UserError`."""
    lines: list[str] = []
    with ExitStack() as stack:
        if arguments.output:
            page, shown = page_of(queries, found, distances, f"{arguments.gallery}", distance)
            # A file name may have bytes that are not UTF-8.
            content = page.encode(errors="backslashreplace")
            stack.enter_context(atomic_write(arguments.output)).write_bytes(content)
            lines = [f"Wrote {arguments.output}, {len(content) / 2**20:.1f} MiB: {shown}"]
        if arguments.csv:
            write_csv(stack.enter_context(atomic_write(arguments.csv)), [query.file for query in queries],
                      [[hit.file for hit in hits] for hits in found], distances)
            lines = [f"Wrote {arguments.csv}, hits: {distances.size}", *lines]
    print_lines(*(lines or table(queries, found, distances)))


def table(queries: Sequence[Triplet], found: Sequence[Sequence[Triplet]], distances: np.ndarray) -> list[str]:
    """Lines of the hits of the first queries."""
    lines = []
    for query, hits, line in list(zip(queries, found, distances, strict=True))[:PRINTED]:
        lines += ["", query.file, *(f"{rank:6}  {distance:8.4f}  {hit.file}"
                                    for rank, (hit, distance) in enumerate(zip(hits, line, strict=True), start=1))]
    left = len(queries) - PRINTED
    return [*lines, "", f"… queries left out: {left}; --csv and --output write all"] if left > 0 else lines


def page_of(queries: Sequence[Triplet], found: Sequence[Sequence[Triplet]], distances: np.ndarray, gallery: str,
            distance: str) -> tuple[str, str]:
    """The page, and what it shows in a few words. `distance` says what the distances (Q, top) are. Raises `UserError` for an
    image that cannot be read."""
    rows: list[list[Card]] = []
    size, most = 0, min(MOST_HITS, len(found[0]))
    for query, hits, line in progress(list(zip(queries, found, distances, strict=True)), "drawing", unit="query"):
        row = [card(query, "query"), *(card(hit, f"{rank}: d = {value:.4f}")
                                       for rank, (hit, value) in enumerate(zip(hits[:most], line, strict=False), start=1))]
        size += sum(len(image) for one in row for image in one.images if image)
        if rows and size > MOST_BYTES:
            break
        rows.append(row)
    shown = f"queries: {len(queries)}, hits of each: {len(found[0])}"
    if len(rows) < len(queries) or most < len(found[0]):
        shown += f"; the page is limited to {len(rows)} and {most}, --csv writes all"
    template = Environment(autoescape=True).from_string(PAGE.read_text(encoding="utf-8"))
    return template.render(rows=rows, gallery=gallery, shown=shown, distance=distance, modalities=MODALITIES), shown


class Card(NamedTuple):
    """A triplet on the page: its images of RGB, NI and TI as JPEG in base64, None for a missing one."""

    title: str
    name: str
    file: str
    images: list[str | None]


def card(triplet: Triplet, title: str) -> Card:
    return Card(title, triplet.name, triplet.file, [path and thumbnail(path) for path in triplet.paths])


@lru_cache(maxsize=4096)  # many queries may have the same hits
def thumbnail(path: str) -> str:
    """An image within `SIDE` × `SIDE` pixels, as JPEG in base64. Raises `UserError` where it cannot be read."""
    image = Image.fromarray(decode(path).permute(1, 2, 0).numpy())
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=QUALITY)
    return base64.b64encode(content.getvalue()).decode()
