"""What demo-sdtps rank does: exported features, read block by block, and their mAP and CMC (docs/search.md)."""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.evaluation.distances import (
    Comparison,
    Side,
    check_finite,
    describe_incomparable,
    measure_distances,
    names_present,
)
from demo_sdtps.evaluation.metrics import Labels, score_distances
from demo_sdtps.evaluation.tables import reid_record, reid_table
from demo_sdtps.retrieval.features import decode_present
from demo_sdtps.retrieval.nearest import (
    Gallery,
    array_blocks,
    nearest,
    normalise_rows,
    search_sets,
    write_csv,
)
from demo_sdtps.retrieval.table import open_table
from demo_sdtps.runtime.distributed import check_single
from demo_sdtps.runtime.files import atomic_write, write_json

LABELS = {"ids": "identity", "cams": "camera", "scenes": "scene"}
"""Attributes of samples by the names of their arrays."""
SETTINGS = ("checkpoint_sha256", "return_pattern", "normalised", "data_set", "configuration")
"""What an export records of its features' origin, in the order in which two exports are compared."""
MAY_DIFFER = ("TEST.AMP", "TEST.MISS", "MODEL.DIST_TRAIN")
"""Configuration keys that change the rounding alone, as --dtype of an export does, what is present, or nothing."""


@dataclass(frozen=True)
class FeatureSet(Gallery):
    """Features of n samples in blocks of float32; `ids`, `cams` and `scenes` (n,) int64, `names` the first file of each sample,
    texts or, of a table, Arrow's, `settings` the values of SETTINGS."""

    place: str | Path
    settings: Mapping[str, Any]
    names: Sequence[Any]
    ids: np.ndarray
    cams: np.ndarray
    scenes: np.ndarray


def open_features(
    place: str | Path, normalise: bool = True, where: str | None = None
) -> FeatureSet:
    """The features of a file or table, L2-normalised with `normalise`; of a table the rows that `where`, a condition in SQL,
    leaves. Labels and names are read; features of a table stay in it."""
    if Path(place).suffix in (".npz", ".parquet") and not Path(place).is_dir():
        if where is not None:
            raise UserError(f"--where needs a table, but {place} is a file; export to a table.")
        return _open_file(Path(place), normalise)
    table = open_table(place, "run the export again, with --overwrite if it refuses")
    if table is None:
        raise UserError(
            f"The features {place} do not exist; give an .npz file or a table that demo-sdtps export wrote."
        )
    if table.count() != table.facts.get("rows", table.count()):
        raise UserError(f"The export in {place} is not complete; run its command again.")
    rows = table.read(where, [*LABELS.values()], normalise)
    labels = {name: np.full(len(rows), UNKNOWN) for name in LABELS}
    for name, label in LABELS.items():  # of whole numbers
        if label in rows.columns.column_names and str(rows.columns[label].type) == "int64":
            labels[name] = rows.columns[label].fill_null(UNKNOWN).to_numpy().copy()
    settings, names = {name: table.facts[name] for name in SETTINGS}, rows.columns["name"]
    return FeatureSet(rows.features, rows.present, place, settings, names, **labels)


def _open_file(path: Path, normalise: bool) -> FeatureSet:
    """`open_features` of an .npz file."""
    if path.suffix == ".parquet":
        raise UserError(
            f"The file {path} is Parquet, which databases read; give an .npz file or a table."
        )
    try:
        with np.load(path) as content:
            array = content["features"].astype(np.float32)
            names = [next(filter(None, row)) for row in content["paths"].tolist()]
            labels = {name: content[name].astype(np.int64, casting="safe") for name in LABELS}
            present = decode_present(content["present"])
            settings = {name: content[name].item() for name in SETTINGS}
            settings["configuration"] = json.loads(settings["configuration"])
    except FileNotFoundError:
        raise UserError(
            f"The features {path} do not exist; give a file or folder that demo-sdtps export wrote."
        ) from None
    except MemoryError:
        raise
    except Exception:  # a damaged archive raises many types
        raise UserError(
            f"The file {path} is damaged, or not of this version's demo-sdtps export; export it again."
        ) from None
    check_finite(torch.from_numpy(array), f"features in {path}")
    ranks = np.unique(names, return_inverse=True)[1]
    features = array_blocks(normalise_rows(array) if normalise else array, ranks)
    return FeatureSet(features, present, path, settings, names, **labels)


def rank_exports(arguments: argparse.Namespace) -> None:
    """Rank by the words of the command, print the table and write the files."""
    check_single("demo-sdtps rank")
    is_normalised = arguments.feat_norm == "yes"
    if arguments.csv and not is_normalised:
        raise UserError(
            "--csv compares L2-normalised features, but --feat_norm is no; leave one of them out."
        )
    query = open_features(arguments.query, is_normalised)
    gallery = open_features(arguments.gallery, is_normalised, arguments.where)
    check_comparable(query, gallery, is_normalised)
    has_labels = all((side.ids != UNKNOWN).any() for side in (query, gallery))
    has_figures = has_labels and query.settings["data_set"] == gallery.settings["data_set"]
    if not has_figures and (arguments.json or not arguments.csv):
        names = " and ".join(side.settings["data_set"] for side in (query, gallery))
        raise UserError(
            f"The features are of {names}, whose identities are not the same, or not known, so nothing can be scored; give "
            "--csv FILE alone for the nearest of each query."
        )
    codes = decode_present(gallery.settings["configuration"]["sources"])
    sources = [frozenset(names_present(source)) for source in codes]
    comparison = Comparison(sources, arguments.cross_modal_distance, is_normalised)
    side = query.take(query.features.rows), query.present
    with ExitStack() as both:  # the CSV gets its name after the JSON is there, or neither does
        if arguments.csv:
            top = min(arguments.top, len(gallery))
            hits = search_sets(comparison, side, gallery, top, nearest)
            columns = ["score"] if (hits.scores != hits.distances).any() else []
            named = [
                [
                    (str(gallery.names[row]), far, *[f"{score:.6f}" for _ in columns])
                    for row, far, score in zip(*line, strict=True)
                    if row >= 0
                ]
                for line in zip(*hits, hits.scores, strict=True)
            ]
            path = both.enter_context(atomic_write(arguments.csv))
            write_csv(path, [*map(str, query.names)], named, columns)
        if has_figures:
            caption, record = score_features(comparison, side, query, gallery)
            if arguments.json:
                write_json(arguments.json, {"caption": caption, "patterns": record})
            print_lines(caption, *reid_table(record).splitlines())
        else:
            print_lines(f"{len(query)} queries of {query.place}, the nearest of {gallery.place}")
    present, flag = (query.present, gallery.present), "--cross_modal_distance"
    if text := describe_incomparable(comparison, *present, setting=flag):
        print_lines(f"WARNING: {text}, otherwise their matches rank last.")


def score_features(
    comparison: Comparison, side: Side, query: FeatureSet, gallery: FeatureSet
) -> tuple[str, dict[str, Any]]:
    """What is ranked, in a sentence, and the scores by return pattern."""
    key, attribute = ("scene", "scenes") if gallery.scenes.any() else ("camera", "cams")
    labels = [Labels(each.ids, each.cams, getattr(each, attribute)) for each in (query, gallery)]
    features = gallery.take(np.arange(len(gallery)))
    distances = measure_distances(comparison, side, (features, gallery.present))
    ranking = score_distances(distances, *labels)
    caption = (
        f"{len(query)} queries of {query.place}, {len(gallery)} gallery samples of {gallery.place}, the same identity "
        f"and {key} excluded{'' if comparison.normalise else ', features not normalised'}, in percent"
    )
    return caption, reid_record({gallery.settings["return_pattern"]: ranking})


def check_comparable(query: FeatureSet, gallery: FeatureSet, normalise: bool) -> None:
    """Raise `UserError` where features differ in what they depend on, `normalised` too where they are not with `normalise`."""
    one, other = ({**side.settings, **side.settings["configuration"]} for side in (query, gallery))
    may_differ = {"configuration", "data_set", *MAY_DIFFER, *(["normalised"] if normalise else [])}
    for key in one:
        if key in other and key not in may_differ and one[key] != other[key]:
            values = "" if key == "checkpoint_sha256" else f", {one[key]!r} and {other[key]!r}"
            raise UserError(
                f"The features {query.place} and {gallery.place} are of different values of {key}{values}; export "
                "one of them again."
            )
