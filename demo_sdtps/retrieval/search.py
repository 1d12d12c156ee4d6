"""What demo-sdtps search does: the index of a gallery brought up to date, and the hits of each query (docs/search.md)."""

import hashlib
import json
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import FALSE_ACCEPT, RERANKED, SQUARED
from demo_sdtps.datasets.base import GALLERY, QUERY
from demo_sdtps.datasets.folders import Triplet, read_folders
from demo_sdtps.datasets.images import drop_unreadable
from demo_sdtps.datasets.own import read_triplets
from demo_sdtps.evaluation.distances import (
    Comparison,
    Side,
    describe_incomparable,
    find_incomparable,
    make_comparison,
    present_modalities,
)
from demo_sdtps.evaluation.extraction import prepare_evaluation
from demo_sdtps.retrieval.calibration import Calibration
from demo_sdtps.retrieval.gallery import (
    as_text,
    describe_features,
    extract_triplets,
    open_index,
    update,
)
from demo_sdtps.retrieval.nearest import rerank_hits, search_sets
from demo_sdtps.retrieval.reid import Reid, open_reid
from demo_sdtps.retrieval.table import Rows
from demo_sdtps.runtime.errors import check_extra


class Hit(NamedTuple):
    """A triplet of the gallery, its distance, the score that hits are ordered by and, with a calibration, the probability that
    it is of the query's identity, nan where it is not known, and whether it is unknown, beyond the threshold, and so last."""

    triplet: Triplet
    distance: float
    score: float
    probability: float | None = None
    is_unknown: bool = False


class SearchResult(NamedTuple):
    """Queries, the hits of each, whose distances are `distance`, what is wrong with images that were left out, by path, and the
    model."""

    queries: Sequence[Triplet]
    hits: list[list[Hit]]
    distance: str
    broken: dict[str, str]
    reid: Reid


def search(arguments: Namespace, cfg: CfgNode) -> SearchResult:
    """Bring the index up to date, and search it."""
    prepare_evaluation(cfg)
    check_extra("demo-sdtps search", "search", {"lancedb": "lancedb", "jinja2": "jinja2"})
    names, folders = cfg.MODEL.MODALITIES, read_folders(cfg)
    read = partial(read_triplets, folders=folders, pattern=arguments.pattern)
    gallery = read(arguments.gallery, GALLERY, names, camera=arguments.gallery_camera)
    queries = read(arguments.query, QUERY, names, camera=arguments.camera)
    if (arguments.re_rank or len(gallery)) < min(arguments.top, len(gallery)):
        raise UserError(
            f"--re_rank is {arguments.re_rank}, fewer than the hits to show (--top); raise it."
        )
    comparison = make_comparison(cfg, arguments.return_pattern)
    check_sets(
        comparison, queries, *(present_modalities(side, names) for side in (queries, gallery))
    )
    broken: dict[str, str] = {}
    check = partial(drop_unreadable, broken=broken) if cfg.DATASETS.SKIP_UNREADABLE else list
    origin = describe_features(cfg, arguments.return_pattern)
    place = arguments.index or default_index(arguments.gallery, origin)
    origin |= {"checkpoint": cfg.TEST.WEIGHT}
    reid = open_reid(cfg)
    cameras = check_cameras(arguments, reid, [*gallery, *queries])
    calibration = None if arguments.re_rank else reid.calibrations.get(arguments.return_pattern)
    if arguments.false_accept and not calibration:
        raise UserError(
            "--false_accept needs a calibration of the distance without re-ranking, which there is not; run demo-sdtps "
            f"calibrate --weight {cfg.TEST.WEIGHT}, or leave it out."
        )
    width = reid.widths[arguments.return_pattern]
    table = open_index(place, arguments.gallery, origin, gallery, width, arguments.rebuild)
    extract = partial(extract_triplets, reid, arguments.return_pattern)
    queries = check(queries)
    # before the gallery, which may take hours
    query = torch.from_numpy(extract(queries)), present_modalities(queries, names)
    changes = update(table, arguments.gallery, gallery, extract, check)
    counts = ", ".join(f"{count} {name}" for name, count in changes._asdict().items() if count)
    total = table.handle.count_rows()
    print_lines(f"Index {place}: {total} triplets ({counts or 'no change'})", *cameras)
    rows = table.read(arguments.where)
    hits: list[list[Hit]] = [[] for _ in queries]
    if queries and len(rows):
        check_sets(comparison, queries, query[1], rows.present)
        triplets = {as_text(triplet.name): triplet.without(broken) for triplet in gallery}
        hits = find_hits(arguments, comparison, queries, query, rows, triplets, calibration)
    return SearchResult(queries, hits, RERANKED if arguments.re_rank else SQUARED, broken, reid)


def find_hits(
    arguments: Namespace,
    comparison: Comparison,
    queries: Sequence[Triplet],
    query: Side,
    gallery: Rows,
    triplets: Mapping[str, Triplet],
    calibration: Calibration | None,
) -> list[list[Hit]]:
    """The hits of each query in rows of an index, of the gallery's triplets by name, without those that have a file of the
    query, except with --keep_self."""
    excluded = [set[str]() for _ in queries]
    if not arguments.keep_self:
        excluded = same_files(queries, triplets)
    # so many that `top` are left without those that are excluded
    depth = min(arguments.top + max(1, *map(len, excluded)), len(gallery))
    most = min(max(arguments.re_rank or 0, depth), len(gallery))
    rate = arguments.false_accept or FALSE_ACCEPT
    near: Any = search_sets(comparison, query, gallery, most, calibration, rate)
    if arguments.re_rank:
        near = rerank_hits(comparison, query, gallery, near, depth)
    # re-ranked ones have no other scores than their distances
    columns = [gallery.names(near.rows), near.distances, getattr(near, "scores", near.distances)]
    columns += [near.probability, near.is_unknown] if calibration else []
    hits = []
    for without, *values in zip(excluded, *columns, strict=True):
        lines = zip(*(column.tolist() for column in values), strict=True)
        # another command may have added images since this one looked for them
        shown = [line for line in lines if line[0] in triplets and line[0] not in without]
        hits.append([Hit(triplets[name], *line) for name, *line in shown[: arguments.top]])
    return hits


def same_files(queries: Sequence[Triplet], triplets: Mapping[str, Triplet]) -> list[set[str]]:
    """For each query the names of the gallery's triplets that have one of its files, by whatever path or link."""
    names: dict[Any, set[str]] = {key: set() for query in queries for key in query.file_keys()}
    for name, triplet in triplets.items():
        for key in names.keys() & triplet.file_keys():
            names[key].add(name)
    return [set[str]().union(*map(names.__getitem__, query.file_keys())) for query in queries]


def check_sets(
    comparison: Comparison, queries: Sequence[Triplet], present: np.ndarray, gallery: np.ndarray
) -> None:
    """Raise `UserError` for a query, by what is present in them (Q, 3), that has a distance from nothing in the gallery, by
    what is present there (G, 3)."""
    if text := describe_incomparable(comparison, present, gallery):
        first = queries[find_incomparable(comparison, present, gallery)[0]]
        raise UserError(f"{text}; or leave them out, the first is {first.files[0]}.")


def check_cameras(arguments: Namespace, reid: Reid, triplets: Sequence[Triplet]) -> list[str]:
    """A line on cameras that the model's training did not have, if any. Raises `UserError` where a flag names one."""
    names = ", ".join(filter(None, reid.camera_names)) or "none that its checkpoint names"
    for flag in ("camera", "gallery_camera"):
        name = getattr(arguments, flag)
        if name and reid.cameras and name not in reid.camera_names:
            raise UserError(
                f"--{flag} is {name}, but the cameras of the model's training are {names}; give one of them, or leave it out."
            )
    labels = {triplet.labels["camera"] for triplet in triplets if "camera" in triplet.labels}
    others = sorted(labels - {*reid.camera_names}) if reid.cameras else []
    return others and [
        f"Cameras that the model was not trained on, so that the mean of its own ({names}) is taken: {', '.join(others)}"
    ]


def default_index(gallery: Path, origin: Mapping[str, Any]) -> Path:
    """Below runs/search, by the gallery's name, and a digest of its path and of what the features depend on."""
    place = gallery.resolve()
    content = os.fsencode(place) + json.dumps(origin, sort_keys=True).encode()
    return Path("runs", "search", f"{place.name}-{hashlib.sha256(content).hexdigest()[:16]}")
