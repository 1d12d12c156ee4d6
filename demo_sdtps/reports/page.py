"""Pages of one HTML file with everything in it: what those of reports and searches share, and the hits of a search."""

import argparse
import base64
import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import omissions
from demo_sdtps.evaluation.extraction import Model
from demo_sdtps.modeling import DeMo
from demo_sdtps.reports.figures import AS_DATA, images
from demo_sdtps.reports.tokens import description, patch_grids
from demo_sdtps.retrieval.nearest import write_csv
from demo_sdtps.retrieval.search import Hit, SearchResult
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress

TEMPLATES = Path(__file__).resolve().parent / "templates"
SIDE, QUALITY = 128, 80  # of a thumbnail: the longer side of each image in pixels, JPEG's quality
THUMBNAIL_BYTES = (
    15 << 20
)  # of the images on a page of hits; queries beyond are left out, which it says
MOST_HITS = 50  # hits of a query on the page
MOST_KEPT = 500  # triplets with their kept patches, for which the model runs
PRINTED = 5  # queries whose hits are printed


def render(
    template: str,
    cfg: CfgNode,
    model: Model,
    samples: Mapping[int, Sample],
    modalities: Sequence[str],
    content: dict[str, Any],
    **about: object,
) -> str:
    """The page of a template, with `content` for its scripts, and the kept patches of `samples` by their indices in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    content |= {
        "modalities": modalities,
        "stacked": is_stacked(cfg),
        "kept": kept_patches(cfg, model, samples, modalities),
        "palette": AS_DATA,
    }
    return templates.get_template(template).render(about, content=content, cfg=cfg)


def is_stacked(cfg: CfgNode) -> bool:
    """Whether a thumbnail has the images of its modalities one above the other: wide ones."""
    height, width = cfg.INPUT.SIZE_TEST
    return width > height


def thumbnail(cfg: CfgNode, sample: Sample, modalities: Sequence[str]) -> str:
    """The images of a triplet, as the model sees them, as a single JPEG in base64."""
    triplet = np.concatenate(images(cfg, sample, modalities), axis=0 if is_stacked(cfg) else 1)
    ratio = min(1, SIDE / max(cfg.INPUT.SIZE_TEST))
    size = [max(1, round(ratio * length)) for length in triplet.shape[1::-1]]
    file = io.BytesIO()
    Image.fromarray(triplet).resize((size[0], size[1])).save(file, "JPEG", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode()


def kept_patches(
    cfg: CfgNode, model: Model, samples: Mapping[int, Sample], modalities: Sequence[str]
) -> dict[str, Any] | None:
    """The kept patches of every stage and SDTPS, by its name: for each sample bits (modality, row, column), packed and in
    base64; None for a model that keeps all, or an exported one."""
    if not isinstance(model, DeMo) or not (model.sdtps or model.slimming):
        return None
    size, (rows, columns) = cfg.TEST.IMS_PER_BATCH, model.backbone.grid_size
    bits: dict[str, dict[int, str]] = {}
    text, indices = "", list(samples)
    for start in progress(range(0, len(samples), size), "kept patches", unit="batch"):
        batch = indices[start : start + size]
        grids = patch_grids(cfg, model, [samples[index] for index in batch])
        text = text or description(cfg, model, grids)
        for name, by_modality in grids.items():
            kept = np.zeros((len(batch), len(modalities), rows * columns), bool)
            for place, modality in enumerate(modalities):
                if modality in by_modality:  # nothing is kept of a missing one
                    kept[:, place] = by_modality[modality][:, 0].flatten(1) > 0
            packed = np.packbits(kept.reshape(len(batch), -1), axis=1)
            encoded = [base64.b64encode(row.tobytes()).decode() for row in packed]
            bits.setdefault(name, {}).update(zip(batch, encoded, strict=True))
    return {"rows": rows, "columns": columns, "bits": bits, "description": text}


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
