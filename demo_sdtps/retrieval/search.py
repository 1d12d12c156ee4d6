"""What demo-sdtps search does: the index of a gallery is brought up to date with its images, and searched (docs/search.md).

The index is a table. A row is a triplet: its name, the paths of its files, what is present, its labels, and `stamps`, a text
that differs where one of these, the size or a time of a file (`Triplet.stamp`) differs.
"""

import hashlib
import json
import logging
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import print_lines, warn_of_alike
from demo_sdtps.datasets.base import GALLERY, QUERY
from demo_sdtps.datasets.folders import Triplet, read_folders
from demo_sdtps.datasets.images import drop_unreadable
from demo_sdtps.datasets.own import read_triplets
from demo_sdtps.evaluation.distances import (
    Comparison,
    Side,
    make_comparison,
    names_present,
    present_modalities,
    set_name,
)
from demo_sdtps.evaluation.protocol import count_pages, prepare_evaluation
from demo_sdtps.retrieval.features import as_text, describe_features
from demo_sdtps.retrieval.nearest import Calibration, Gallery, rerank_hits, search_sets
from demo_sdtps.retrieval.reid import Reid, open_reid
from demo_sdtps.retrieval.table import BATCH, FEATURE, REBUILD, Table, create_table, open_table
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.progress import progress

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
FORMAT = 4  # of the columns and facts of an index
COLUMNS = ("name", *map(str.lower, MODALITIES), "stamps", "present")
"""Columns of texts, of which the name is the key; the labels follow."""
NUMBERS = {"int64": r"-?(0|[1-9]\d{0,17})", "float64": r"-?(0|[1-9]\d{0,9})(\.\d{1,5})?"}
"""Arrow's types of labels, by what all of a column's texts are, which keep 18 and 15 digits apart; others stay texts."""


class Hit(NamedTuple):
    """A triplet of the gallery, its distance, the score that hits are ordered by and, with a calibration, the probability that
    it is of the query's identity, nan where it is not known."""

    triplet: Triplet
    distance: float
    score: float
    probability: float | None = None


class SearchResult(NamedTuple):
    """Queries, the hits of each, what is wrong with images that were left out, by path, the model, and `describe_cameras`."""

    queries: Sequence[Triplet]
    hits: list[list[Hit]]
    broken: dict[str, str]
    reid: Reid
    cameras: list[str]


class Changes(NamedTuple):
    """Numbers of triplets that were new, changed and removed since the index was written."""

    new: int
    changed: int
    removed: int


def search(arguments: Namespace, cfg: CfgNode) -> SearchResult:
    """Bring the index up to date, and search it."""
    prepare_evaluation(cfg)
    check_extra("demo-sdtps search", "search", {"lancedb": "lancedb", "jinja2": "jinja2"})
    names, pattern = cfg.MODEL.MODALITIES, arguments.return_pattern
    read = partial(read_triplets, folders=read_folders(cfg), pattern=arguments.pattern)
    gallery = read(arguments.gallery, GALLERY, names, camera=arguments.gallery_camera)
    queries = read(arguments.query, QUERY, names, camera=arguments.camera)
    broken: dict[str, str] = {}
    check = partial(drop_unreadable, broken=broken) if arguments.skip_unreadable else list
    origin = describe_features(cfg, pattern)
    folder = arguments.gallery.resolve()
    content = os.fsencode(folder) + json.dumps(origin, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    place = arguments.index or Path("runs", "search", f"{folder.name}-{digest}")
    origin |= {"checkpoint": cfg.TEST.WEIGHT, "format": FORMAT}
    reid = open_reid(cfg)
    reid.warns_of_cameras = False  # a line of the output says it, at each search
    width = reid.widths[pattern]
    extract = partial(extract_triplets, reid, pattern)
    queries = check(queries)
    # before the gallery, which may take hours, and before an index is replaced
    query = torch.from_numpy(extract(queries)), present_modalities(queries, names)
    rebuild, where = arguments.rebuild, arguments.where
    table = open_index(place, arguments.gallery, origin, gallery, width, rebuild, where)
    changes = update(table, arguments.gallery, gallery, extract, check)
    counts = ", ".join(f"{count} {name}" for name, count in changes._asdict().items() if count)
    total, cameras = table.handle.count_rows(), describe_cameras(reid, [*gallery, *queries])
    print_lines(f"Index {place}: {total} triplets ({counts or 'no change'})", *cameras)
    comparison, (stored, side) = make_comparison(cfg, pattern), table.side(where)
    if where and (unknown := table.count_lacking(where)):
        print_lines(f"Left out by --where: {unknown} triplets, which lack a label of the condition")
    if text := describe_incomparable(comparison, query[1], side[1]):
        print_lines(text)
    hits: list[list[Hit]] = [[] for _ in queries]
    if queries and len(stored):
        triplets = {as_text(triplet.name): triplet.without(broken) for triplet in gallery}
        calibration = None if arguments.re_rank else reid.calibrations.get(pattern)
        hits = find_hits(arguments, comparison, queries, query, stored, side, triplets, calibration)
    return SearchResult(queries, hits, broken, reid, cameras)


def find_hits(
    arguments: Namespace,
    comparison: Comparison,
    queries: Sequence[Triplet],
    query: Side,
    names: np.ndarray,
    gallery: Side,
    triplets: Mapping[str, Triplet],
    calibration: Calibration | None,
) -> list[list[Hit]]:
    """The hits of each query among an index's rows of these names (n,), without the query's files, but with --keep_self."""
    excluded = [set[str]() for _ in queries]
    if not arguments.keep_self:
        excluded = same_files(queries, triplets)
    # so many that `top` are left without those that are excluded
    depth = min(arguments.top + max(1, *map(len, excluded)), len(names))
    most = min(max(arguments.re_rank or 0, depth), len(names))
    near = search_sets(query, Gallery(comparison, gallery), most, calibration)
    if arguments.re_rank:
        near = rerank_hits(comparison, query, gallery, near, depth)
    shown = np.where(near.rows < 0, None, names[near.rows])
    columns = [shown, near.distances, near.scores]
    if near.probability is not None:
        columns.append(near.probability)
    hits = []
    for without, *values in zip(excluded, *columns, strict=True):
        lines = zip(*(column.tolist() for column in values), strict=True)
        # another command may have added images since this one looked for them
        kept = [line for line in lines if line[0] in triplets and line[0] not in without]
        hits.append([Hit(triplets[name], *line) for name, *line in kept[: arguments.top]])
    return hits


def same_files(queries: Sequence[Triplet], triplets: Mapping[str, Triplet]) -> list[set[str]]:
    """For each query the names of the gallery's triplets that have one of its files, by whatever path or link."""
    names: dict[Any, set[str]] = {key: set() for query in queries for key in query.file_keys()}
    for name, triplet in triplets.items():
        for key in names.keys() & triplet.file_keys():
            names[key].add(name)
    return [set[str]().union(*map(names.__getitem__, query.file_keys())) for query in queries]


def describe_cameras(reid: Reid, triplets: Sequence[Triplet]) -> list[str]:
    """A line on cameras that the model's training did not have, or that are not named, if any."""
    labels = {triplet.labels.get("camera", "no camera") for triplet in triplets}
    others = sorted(labels - {*reid.camera_names}) if reid.cameras > 1 else []
    names = ", ".join(filter(None, reid.camera_names)) or "none that its checkpoint names"
    return others and [
        f"Cameras that the model was not trained on, so that the mean of its own ({names}) is taken: {', '.join(others)}"
    ]


def describe_incomparable(comparison: Comparison, query: np.ndarray, gallery: np.ndarray) -> str:
    """A line on the queries that have a distance from nothing in the gallery, by what is present in both; "" for none."""
    others, is_alone = comparison.groups(gallery), np.zeros(len(query), bool)
    for one, rows in comparison.groups(query).items():
        is_alone[rows] = not any(comparison.is_defined(one, other) for other in others)
    names = ", ".join(sorted({set_name(names_present(row)) for row in query[is_alone]}))
    return names and (
        f"Queries without a modality in common with any of the gallery: {is_alone.sum()} of {len(query)} ({names}); "
        "TEST.CROSS_MODAL_DISTANCE all compares them"
    )


def extract_triplets(reid: Reid, pattern: int, triplets: Sequence[Triplet]) -> np.ndarray:
    """The values of `Reid.features` of triplets, by their cameras."""
    if not triplets:
        return np.empty((0, reid.widths[pattern]), np.float32)
    if pages := count_pages(triplets):
        logger.warning(pages)
    images = zip(*(triplet.paths for triplet in triplets), strict=True)
    cameras = [triplet.labels.get("camera") for triplet in triplets]
    return reid.features(*images, return_pattern=pattern, camera=cameras).values


def open_index(
    place: str | Path,
    gallery: Path,
    origin: Mapping[str, Any],
    triplets: Sequence[Triplet],
    width: int,
    rebuild: bool,
    where: str | None = None,
) -> Table:
    """The table of the index at a place; an empty one where there is none, with `rebuild`, and where the gallery's triplets
    have other labels, or labels of other types. Raises `UserError` for features of another origin, for those of a gallery
    elsewhere that still exists (where its folder is gone, it has moved), for labels that no column can be named by, and for a
    wrong condition `where`, before an index is replaced or filled."""
    import pyarrow as pa

    here, types = str(gallery.resolve()), {name: pa.string() for name in COLUMNS}
    for label in dict.fromkeys(label for triplet in triplets for label in triplet.labels):
        if label in (*COLUMNS, FEATURE):
            raise UserError(
                f"The index has no column {label!r} for a label of {gallery}; rename it."
            )
        texts = [triplet.labels.get(label) or None for triplet in triplets]
        types[label] = label_type(pa.array(texts, pa.string()))
        if types[label] == pa.string():  # as numbers they are one
            warn_of_alike(label, filter(None, texts))
    table = None if rebuild else open_table(place)
    if table:
        check_origin(table, origin)
        other = table.facts["gallery"]
        if other != here and Path(other).exists():
            raise UserError(
                f"The index {place} is of the gallery {other}, not of {gallery}; {REBUILD}."
            )
    if where:
        create_table("memory://condition", {}, types, width).count_lacking(where)
    if table and table.labels == types:
        return table
    is_other = rebuild or table is not None
    return create_table(place, {**origin, "gallery": here}, types, width, replace=is_other)


def update(
    table: Table,
    gallery: Path,
    triplets: Sequence[Triplet],
    extract: Callable[[Sequence[Triplet]], np.ndarray],
    check: Callable[[Sequence[Triplet]], list[Triplet]] = list,
) -> Changes:
    """Bring a table up to date with its gallery. New and changed triplets are extracted as `check` returns them; those that it
    leaves images out of count as changed again the next time. An update that was interrupted continues after its `BATCH`es."""
    import pyarrow.compute as pc

    columns = as_columns(
        progress(triplets, "looking for changes", unit="triplet"), gallery, table.labels
    )
    stored = table.read(names=["name", "stamps"])
    place = pc.index_in(columns["name"], stored["name"])  # null: a new one
    stamps = stored["stamps"].take(place).combine_chunks()
    is_kept = pc.fill_null(pc.equal(columns["stamps"], stamps), False)
    gone = np.setdiff1d(np.arange(len(stored)), np.asarray(place.filter(is_kept)))
    table.delete(stored["name"].take(gone).to_pylist())
    outdated = np.flatnonzero(~np.asarray(is_kept)).tolist()
    with progress(total=len(outdated), desc="indexing", unit="triplet") as bar:
        for start in range(0, len(outdated), BATCH):
            rows = outdated[start : start + BATCH]
            if chunk := check([triplets[row] for row in rows]):
                # stamps are those before the images are read
                table.put(as_columns(chunk, gallery, table.labels), extract(chunk))
            bar.update(len(rows))
    changed = len(outdated) - place.null_count
    changes = Changes(place.null_count, changed, len(gone) - changed)
    if any(changes):
        table.tidy()
    return changes


def as_columns(
    triplets: Iterable[Triplet], gallery: Path, labels: Iterable[str]
) -> "dict[str, pa.StringArray]":
    """The columns of a gallery's triplets as texts, paths relative to its folder."""
    import pyarrow as pa

    folder = gallery if gallery.is_dir() else gallery.parent
    rows = []
    for triplet in triplets:
        paths = [each and as_text(each.removeprefix(f"{folder}{os.sep}")) for each in triplet.paths]
        stamps = f"{triplet.stamp()} {paths} {sorted(triplet.labels.items())}"
        texts = as_text(triplet.name), *paths, stamps, ",".join(triplet.modalities)
        rows.append({**triplet.labels, **dict(zip(COLUMNS, texts, strict=True))})
    return {name: pa.array([row.get(name) or None for row in rows], pa.string()) for name in labels}


def label_type(column: "pa.StringArray") -> "pa.DataType":
    """The type of a column of labels: whole numbers, numbers or text, by what all are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, pattern in NUMBERS.items():
        is_number = pc.match_substring_regex(column, f"^{pattern}$")
        if column.null_count < len(column) and pc.all(is_number).as_py():
            return getattr(pa, name)()
    return pa.string()


def check_origin(table: Table, origin: Mapping[str, Any]) -> None:
    """Raise `UserError` where the features of a table depend on something else than `origin`."""
    was, now = ({**each, **each.get("configuration", {})} for each in (table.facts, origin))
    for name in now:
        if name not in ("checkpoint", "configuration") and was.get(name) != now[name]:
            raise UserError(
                f"The features in {table.place} are of another {name} ({was.get(name)!r}, not {now[name]!r}); {REBUILD}."
            )
