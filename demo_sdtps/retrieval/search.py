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
from demo_sdtps.config.common import FALSE_ACCEPT, FLAT, RERANKED, SQUARED, TOP
from demo_sdtps.datasets.base import GALLERY, QUERY
from demo_sdtps.datasets.folders import Triplet, check_modality, image_folders
from demo_sdtps.datasets.own import read_triplets
from demo_sdtps.datasets.unreadable import drop_unreadable
from demo_sdtps.evaluation.distances import (
    Comparison,
    Side,
    describe_incomparable,
    find_incomparable,
    make_comparison,
    present_modalities,
)
from demo_sdtps.evaluation.extraction import prepare_evaluation
from demo_sdtps.retrieval.approximate import approximate, refresh
from demo_sdtps.retrieval.calibration import Calibration
from demo_sdtps.retrieval.gallery import as_text, extract_triplets, open_index, update
from demo_sdtps.retrieval.load import open_reid
from demo_sdtps.retrieval.nearest import nearest, rerank_all, rerank_hits, search_sets
from demo_sdtps.retrieval.origin import describe_features
from demo_sdtps.retrieval.reid import Reid
from demo_sdtps.retrieval.table import Table
from demo_sdtps.runtime.distributed import all_gather_rows, check_equal, is_main, shard_for_rank
from demo_sdtps.runtime.errors import check_extra

MOST_RERANKED = 20_000  # triplets of a gallery that is re-ranked as a whole (TEST.RE_RANKING)


class Hit(NamedTuple):
    """A triplet of the gallery, its distance, the score that hits are ordered by and, with a calibration, the probability that
    it is of the query's identity, nan where it is not known, and whether it is unknown, beyond the threshold, and so last."""

    triplet: Triplet
    distance: float
    score: float
    probability: float | None = None
    is_unknown: bool = False


class SearchResult(NamedTuple):
    """Queries, the hits of each, whose distances are `distance`, what is wrong with images that were left out, by path, the
    model, and lines on its calibration."""

    queries: Sequence[Triplet]
    hits: list[list[Hit]]
    distance: str
    broken: dict[str, str]
    reid: Reid
    notes: Sequence[str] = ()


def search(
    arguments: Namespace,
    cfg: CfgNode,
    queries: Sequence[Triplet] | None = None,
    reid: Reid | None = None,
) -> SearchResult | None:
    """Bring the index up to date in all processes; the main one, which alone has it, searches. `queries` are those of --query
    unless given; `reid` is the model of `cfg`, if it is loaded."""
    prepare_evaluation(cfg, several=True)
    check_extra("demo-sdtps search", "search", {"lancedb": "lancedb", "jinja2": "jinja2"})
    places = [arguments.gallery, *([arguments.query] if queries is None else [])]
    check_modality(arguments.flat, image_folders(cfg), *places)
    gallery = read_images(arguments, cfg, GALLERY)
    if queries is None:
        queries = read_images(arguments, cfg, QUERY)
    check_depths(arguments, cfg, len(gallery))
    sides = (present_modalities(side, cfg.MODEL.MODALITIES) for side in (queries, gallery))
    check_sets(arguments, cfg, queries, *sides)
    check_equal((gallery, queries), "images")
    broken: dict[str, str] = {}
    check = partial(drop_unreadable, broken=broken) if cfg.DATASETS.SKIP_UNREADABLE else list
    origin = describe_features(cfg, arguments.return_pattern)
    place = arguments.index or default_index(arguments.gallery, origin)
    origin |= {"checkpoint": cfg.TEST.WEIGHT}
    index = open_index(place, arguments.gallery, origin, arguments.rebuild)
    reid = reid or open_reid(cfg)
    cameras = check_cameras(arguments, reid, [*gallery, *queries])
    is_reranked = arguments.re_rank or reranks_all(arguments, cfg)
    calibration = None if is_reranked else reid.calibrations.get(arguments.return_pattern)
    if arguments.false_accept and not calibration:
        raise UserError(
            "--false_accept needs a calibration of the distance without re-ranking, which there is not; run demo-sdtps "
            f"calibrate --weight {cfg.TEST.WEIGHT}, or leave it out."
        )
    extract = partial(extract_triplets, reid, arguments.return_pattern)
    queries = check(queries)
    # before the gallery, which may take hours
    shard = extract(shard_for_rank(queries) if queries else [])
    features = all_gather_rows(torch.from_numpy(shard), len(queries))
    changes = update(index, gallery, extract, reid.widths[arguments.return_pattern], check)
    if not is_main():
        return None
    rate = arguments.false_accept or FALSE_ACCEPT
    notes = calibration.coarser(rate) if calibration else []
    counts = ", ".join(f"{count} {name}" for name, count in changes._asdict().items() if count)
    assert index.table
    total = index.table.handle.count_rows()
    title = f"Index {index.place}: {total} triplets ({counts or 'no change'})"
    print_lines(title, *cameras, *notes)
    hits: list[list[Hit]] = []
    if queries:
        side = features, present_modalities(queries, cfg.MODEL.MODALITIES)
        triplets = {as_text(triplet.name): triplet.without(broken) for triplet in gallery}
        hits = find_hits(arguments, cfg, index.table, queries, side, triplets, calibration)
    return SearchResult(queries, hits, RERANKED if is_reranked else SQUARED, broken, reid, notes)


def read_images(arguments: Namespace, cfg: CfgNode, split: str) -> list[Triplet]:
    """The triplets of the gallery or the query, with their labels."""
    place, camera = arguments.gallery, arguments.gallery_camera
    if split == QUERY:
        place, camera = arguments.query, arguments.camera
    settings = {"folders": image_folders(cfg), "pattern": arguments.pattern, "camera": camera}
    return read_triplets(place, split, cfg.MODEL.MODALITIES, **settings)


def find_hits(
    arguments: Namespace,
    cfg: CfgNode,
    table: Table,
    queries: Sequence[Triplet],
    side: Side,
    triplets: Mapping[str, Triplet],
    calibration: Calibration | None,
) -> list[list[Hit]]:
    """The hits of each query in the table of an index that is up to date, of the gallery's triplets by name, without those that
    have a file of the query, except with --keep_self."""
    is_exact = arguments.index_type == FLAT
    has_grown = not is_exact and refresh(table)
    gallery = table.read(arguments.where)
    top, deepest = check_depths(arguments, cfg, len(gallery))
    comparison = check_sets(arguments, cfg, queries, side[1], gallery.present)
    excluded = (
        [set[str]() for _ in queries] if arguments.keep_self else same_files(queries, triplets)
    )
    # so many more that `top` are left without those that are excluded
    wider = min(top + max(1, *map(len, excluded)), len(gallery))
    nearest_hits: Any
    if reranks_all(arguments, cfg):
        nearest_hits = rerank_all(comparison, side, gallery, wider)
    else:
        way = nearest if is_exact else partial(approximate, gallery, has_grown)
        rate = arguments.false_accept or FALSE_ACCEPT
        depth = max(deepest, wider)
        nearest_hits = search_sets(comparison, side, gallery, depth, way, calibration, rate)
    if arguments.re_rank:
        nearest_hits = rerank_hits(comparison, side, gallery, nearest_hits, wider)
    rows, distances = nearest_hits
    scores = getattr(nearest_hits, "scores", distances)  # none of re-ranked ones
    columns: list[np.ndarray] = [gallery.names(rows), distances, scores]
    if calibration:
        columns += [nearest_hits.probability, nearest_hits.is_unknown]
    hits = []
    for without, *values in zip(excluded, *columns, strict=True):
        lines = zip(*(column.tolist() for column in values), strict=True)
        # another command may have added images since this one looked for them
        shown = [line for line in lines if line[0] in triplets and line[0] not in without]
        hits.append([Hit(triplets[name], *numbers) for name, *numbers in shown[:top]])
    return hits


def same_files(queries: Sequence[Triplet], triplets: Mapping[str, Triplet]) -> list[set[str]]:
    """For each query the names of the gallery's triplets that have one of its files, by whatever path or link."""
    names: dict[Any, set[str]] = {key: set() for query in queries for key in query.file_keys()}
    for name, triplet in triplets.items():
        for key in names.keys() & triplet.file_keys():
            names[key].add(name)
    return [set[str]().union(*map(names.__getitem__, query.file_keys())) for query in queries]


def check_sets(
    arguments: Namespace,
    cfg: CfgNode,
    queries: Sequence[Triplet],
    present: np.ndarray,
    gallery: np.ndarray,
) -> Comparison:
    """How features are compared. Raises `UserError` for a query, by what is present in them (Q, 3), that has a distance from
    nothing in the gallery, by what is present there (G, 3)."""
    comparison = make_comparison(cfg, arguments.return_pattern)
    if text := describe_incomparable(comparison, present, gallery):
        first = queries[find_incomparable(comparison, present, gallery)[0]]
        raise UserError(f"{text}; or leave them out, the first is {first.files[0]}.")
    return comparison


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


def reranks_all(arguments: Namespace, cfg: CfgNode) -> bool:
    """Whether queries and gallery are re-ranked as a whole, as in the evaluation."""
    return cfg.TEST.RE_RANKING == "yes" and not arguments.re_rank


def check_depths(arguments: Namespace, cfg: CfgNode, gallery: int) -> tuple[int, int]:
    """Hits per query, and those that are re-ranked for them. Raises `UserError` where the gallery is too small or large."""
    top = min(arguments.top or TOP, gallery)
    if not gallery:
        raise UserError(f"No image of the gallery {arguments.gallery} can be read; replace some.")
    if arguments.re_rank and arguments.re_rank < top:
        raise UserError(
            f"--re_rank is {arguments.re_rank}, fewer than the {top} hits to show (--top); raise it."
        )
    if reranks_all(arguments, cfg) and (gallery > MOST_RERANKED or arguments.index_type != FLAT):
        raise UserError(
            f"TEST.RE_RANKING yes re-ranks the whole gallery, but this one has {gallery} triplets, more than "
            f"{MOST_RERANKED}, or --index_type is not flat; give --re_rank K for the K nearest of each query."
        )
    return top, min(arguments.re_rank or top, gallery)


def default_index(gallery: Path, origin: Mapping[str, Any]) -> Path:
    """Below runs/search, by the gallery's name, a digest of its path, and one of what the features depend on."""
    place = gallery.resolve()
    contents = os.fsencode(place), json.dumps(origin, sort_keys=True).encode()
    digests = (hashlib.sha256(content).hexdigest()[:8] for content in contents)
    return Path("runs", "search", "-".join((place.name, *digests)))
