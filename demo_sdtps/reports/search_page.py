"""The hits of demo-sdtps search: printed, as CSV, and as a page like the report's."""

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import quote

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.unreadable import omissions
from demo_sdtps.reports.page import render, thumbnail
from demo_sdtps.retrieval.nearest import write_csv
from demo_sdtps.retrieval.search import Hit, SearchResult
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress

# of the images on a page; queries beyond are left out, which the page says
THUMBNAIL_BYTES = 15 << 20
MOST_HITS = 50  # hits of a query on the page
MOST_KEPT = 500  # triplets with their kept patches, for which the model runs
PRINTED = 5  # queries whose hits are printed


def show(arguments: argparse.Namespace, result: SearchResult) -> None:
    """Write the hits of each query to --csv and --output, all or nothing, or print them; then the images that were left out."""
    lines: list[str] = []
    with ExitStack() as stack:
        if arguments.output:
            from_page = partial(link, folder=arguments.output.parent)
            page, shown = search_page(result, arguments, from_page)
            # A file name may have bytes that are not UTF-8.
            content = page.encode(errors="backslashreplace")
            stack.enter_context(atomic_write(arguments.output)).write_bytes(content)
            lines = [f"Wrote {arguments.output}, {len(content) / 2**20:.1f} MiB: {shown}"]
        if arguments.csv:
            write_hits(result, stack.enter_context(atomic_write(arguments.csv)))
            lines = [f"Wrote {arguments.csv}, hits: {sum(map(len, result.hits))}", *lines]
    print_lines(*(lines or hits_table(result)), *omissions(result.broken))


def write_hits(result: SearchResult, path: Path) -> None:
    """Write the hits as CSV."""
    columns = ["score"] * is_scored(result) + ["probability", "unknown"] * is_calibrated(result)
    values = [[csv_values(hit, columns) for hit in hits] for hits in result.hits]
    write_csv(path, [query.files[0] for query in result.queries], values, columns)


def is_calibrated(result: SearchResult) -> bool:
    """Whether the hits have probabilities."""
    return any(hit.probability is not None for hits in result.hits for hit in hits)


def is_scored(result: SearchResult) -> bool:
    """Whether hits are ordered by other scores than the distances (a gallery that lacks various modalities)."""
    return any(hit.score != hit.distance for hits in result.hits for hit in hits)


def hit_text(hit: Hit) -> str:
    """The probability of a hit, and whether it is of an unknown identity; "–" where neither is known."""
    if hit.probability != hit.probability:
        return "–"
    return f"P = {hit.probability:.1%}{', unknown' if hit.is_unknown else ''}"


def csv_values(hit: Hit, columns: Sequence[str]) -> tuple:
    """The values of a hit in a line of the CSV file."""
    is_judged = hit.probability is not None and hit.probability == hit.probability  # not nan
    judged = (f"{hit.probability:.6f}", int(hit.is_unknown)) if is_judged else ("", "")
    more = {"score": f"{hit.score:.6f}", "probability": judged[0], "unknown": judged[1]}
    return hit.triplet.files[0], hit.distance, *map(more.__getitem__, columns)


def hits_table(result: SearchResult) -> list[str]:
    """Lines of the hits of the first queries."""
    has_scores, is_judged = is_scored(result), is_calibrated(result)
    title = f"{'rank':>6}  distance     score, the order, as triplets lack different modalities"
    lines = [title] if has_scores else []
    for query, hits in list(zip(result.queries, result.hits, strict=True))[:PRINTED]:
        lines += ["", query.files[0]]
        for rank, hit in enumerate(hits, start=1):
            score = f"{hit.score:8.3f}  " if has_scores else ""
            judged = f"{hit_text(hit):19}  " if is_judged else ""
            lines.append(f"{rank:6}  {hit.distance:8.4f}  {score}{judged}{hit.triplet.files[0]}")
    if (left := len(result.queries) - PRINTED) > 0:
        lines += ["", f"… queries left out: {left}; --csv and --output write all"]
    return lines


def search_page(
    result: SearchResult, arguments: argparse.Namespace, link: Callable[[str], str]
) -> tuple[str, str]:
    """The page, and what it shows in a few words; `link` gives the address of a file. The gallery has the name of its folder,
    as the page may be shown where the path means nothing."""
    cfg, model = image_config(result.reid.cfg), result.reid.model
    triplets = [*result.queries, *(hit.triplet for hits in result.hits for hit in hits)]
    present = {name for triplet in triplets for name in triplet.modalities}
    modalities = [name for name in cfg.MODEL.MODALITIES if name in present]
    longest = max(map(len, result.hits), default=0)
    most = min(MOST_HITS, longest)
    images: dict[Triplet, str] = {}  # by triplet, in the order of the page's samples
    rows: list[tuple[Triplet, list[Hit]]] = []
    size = 0
    pairs = list(zip(result.queries, result.hits, strict=True))
    for query, hits in progress(pairs, "drawing", unit="query"):
        needed = dict.fromkeys([query, *(hit.triplet for hit in hits[:most])])
        more = {one: thumbnail(cfg, one, modalities) for one in needed if one not in images}
        size += sum(map(len, more.values()))
        if rows and size > THUMBNAIL_BYTES:
            break
        images |= more
        rows.append((query, hits[:most]))
    shown = f"queries: {len(result.queries)}, hits of each: {longest}"
    if len(rows) < len(result.queries) or most < longest:
        shown += f"; the page is limited to {len(rows)} and {most}, --csv writes all"
    place = {triplet: number for number, triplet in enumerate(images)}

    has_scores = is_scored(result)

    def near(hit: Hit) -> tuple[int, float, float | None, str | None]:
        judged = None if hit.probability is None else hit_text(hit)
        return place[hit.triplet], hit.distance, hit.score if has_scores else None, judged

    def files(triplet: Triplet) -> dict[str, str]:
        paths = zip(MODALITIES, triplet.paths, strict=True)
        return {name: link(path) for name, path in paths if path}

    content = {
        "samples": [
            {"name": one.name, "files": files(one), "camera": one.labels.get("camera")}
            for one in images
        ],
        "thumbnails": list(images.values()),
        "queries": [
            {"sample": place[query], "nearest": list(map(near, hits))} for query, hits in rows
        ],
    }
    page = render(
        "search.html",
        cfg,
        model,
        dict(enumerate(list(images)[:MOST_KEPT])),
        modalities,
        content,
        title=f"Hits in {arguments.gallery.resolve().name}",
        files=True,
        shown=shown,
        where=arguments.where,
        distance=result.distance,
        scored=has_scores,
        notes=result.notes,
        judged=is_calibrated(result),
        most_kept=MOST_KEPT,
    )
    return page, shown


def image_config(cfg: CfgNode) -> CfgNode:
    """`cfg` for the user's images, which are decoded as `Reid.features` does, whatever the model was trained on."""
    return with_values(cfg, {"DATASETS.NAMES": "Images", "TEST.MISS": "nothing"})


def link(path: str, folder: Path) -> str:
    """The address of a file for a page in `folder`: a relative one, but for another drive of Windows."""
    try:
        return quote(os.fsencode(Path(os.path.relpath(path, folder)).as_posix()))
    except ValueError:
        return Path(path).resolve().as_uri()
