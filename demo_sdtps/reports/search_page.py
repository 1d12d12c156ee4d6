"""The hits of tools/search.py: printed, as CSV, and as a page with small images, one HTML file without any other."""

import argparse
import base64
import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment
from PIL import Image

from demo_sdtps.config import MODALITIES
from demo_sdtps.config.cli import count_of, print_lines
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import decode
from demo_sdtps.retrieval.nearest import write_csv
from demo_sdtps.retrieval.search import Found, Hit
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress

SIDE, QUALITY = 128, 80  # longest side of an image in pixels, and its quality as JPEG
# of the images on a page; queries beyond are left out, which the page says
THUMBNAIL_BYTES = 15 << 20
MOST_HITS = 50  # hits of a query on the page
PRINTED = 5  # queries whose hits are printed

PAGE = Path(__file__).resolve().parent / "templates" / "search.html"


def show(arguments: argparse.Namespace, result: Found) -> None:
    """Write the hits of each query to --csv and --output, all or nothing, or print them; then the images that were left
    out."""
    lines: list[str] = []
    with ExitStack() as stack:
        if arguments.output:
            from_page = partial(link, folder=arguments.output.parent)
            page, shown = page_of(result, arguments.gallery, from_page)
            # A file name may have bytes that are not UTF-8.
            content = page.encode(errors="backslashreplace")
            stack.enter_context(atomic_write(arguments.output)).write_bytes(content)
            lines = [f"Wrote {arguments.output}, {len(content) / 2**20:.1f} MiB: {shown}"]
        if arguments.csv:
            judged = ("probability", "unknown") if is_calibrated(result) else ()
            write_csv(
                stack.enter_context(atomic_write(arguments.csv)),
                [query.file for query in result.queries],
                [[csv_values(hit) for hit in hits] for hits in result.hits],
                judged,
            )
            lines = [f"Wrote {arguments.csv}, hits: {sum(map(len, result.hits))}", *lines]
    print_lines(*(lines or hits_table(result)), *omissions(result.broken))


def omissions(broken: dict[str, str]) -> list[str]:
    """Lines on the images that cannot be read; none where all can."""
    return [f"Left out, {count_of(len(broken), 'image')}:", *broken.values()] if broken else []


def is_calibrated(result: Found) -> bool:
    """Whether the hits have probabilities."""
    return any(hit.probability is not None for hits in result.hits for hit in hits)


def hit_text(hit: Hit) -> str:
    """The probability of a hit that is none of an unknown identity; "–" where it is not known."""
    if hit.is_unknown:
        return "unknown"
    return "–" if hit.probability != hit.probability else f"P = {hit.probability:.1%}"


def csv_values(hit: Hit) -> tuple:
    """The values of a hit in a line of the CSV file."""
    if hit.probability is None:
        return hit.triplet.file, hit.distance
    is_judged = hit.probability == hit.probability  # not nan
    judged = (f"{hit.probability:.6f}", int(hit.is_unknown)) if is_judged else ("", "")
    return hit.triplet.file, hit.distance, *judged


def hits_table(result: Found) -> list[str]:
    """Lines of the hits of the first queries."""
    lines = []
    for query, hits in list(zip(result.queries, result.hits, strict=True))[:PRINTED]:
        lines += ["", query.file]
        for rank, hit in enumerate(hits, start=1):
            judged = f"{hit_text(hit):10}  " if is_calibrated(result) else ""
            lines.append(f"{rank:6}  {hit.distance:8.4f}  {judged}{hit.triplet.file}")
    if (left := len(result.queries) - PRINTED) > 0:
        lines += ["", f"… queries left out: {left}; --csv and --output write all"]
    return lines


def page_of(result: Found, gallery: Path, link: Callable[[str], str]) -> tuple[str, str]:
    """The page, and what it shows in a few words; `link` gives the address of a file.

    The gallery has the name of its folder, as the page may be shown where the path means nothing.
    """
    rows: list[list[tuple[str, Triplet]]] = []
    size, longest = 0, max(map(len, result.hits))
    most = min(MOST_HITS, longest)
    pairs = list(zip(result.queries, result.hits, strict=True))
    for query, hits in progress(pairs, "drawing", unit="query"):
        row = [("query", query)]
        for rank, hit in enumerate(hits[:most], start=1):
            judged = f", {hit_text(hit)}" if hit.probability is not None else ""
            row.append((f"{rank}: d = {hit.distance:.4f}{judged}", hit.triplet))
        size += sum(len(thumbnail(path)) for _, triplet in row for path in triplet.paths if path)
        if rows and size > THUMBNAIL_BYTES:
            break
        rows.append(row)
    shown = f"queries: {len(result.queries)}, hits of each: {longest}"
    if len(rows) < len(result.queries) or most < longest:
        shown += f"; the page is limited to {len(rows)} and {most}, --csv writes all"
    modalities = [
        (place, name)
        for place, name in enumerate(MODALITIES)
        if any(triplet.paths[place] for row in rows for _, triplet in row)
    ]
    template = Environment(autoescape=True).from_string(PAGE.read_text(encoding="utf-8"))
    about = {"gallery": gallery.resolve().name, "shown": shown, "distance": result.distance}
    page = template.render(
        about,
        judged=is_calibrated(result),
        rows=rows,
        modalities=modalities,
        thumbnail=thumbnail,
        link=link,
    )
    return page, shown


def link(path: str, folder: Path) -> str:
    """The address of a file for a page in `folder`: a relative one, but for another drive of Windows."""
    try:
        return quote(os.fsencode(Path(os.path.relpath(path, folder)).as_posix()))
    except ValueError:
        return Path(path).resolve().as_uri()


@lru_cache(maxsize=8192)  # many queries may have the same hits
def thumbnail(path: str) -> str:
    """An image within `SIDE` × `SIDE` pixels, as JPEG in base64."""
    image = Image.fromarray(decode(path).permute(1, 2, 0).numpy())
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=QUALITY)
    return base64.b64encode(content.getvalue()).decode()
