"""What demo-sdtps rank does: mAP and CMC of exported features, larger than the memory (docs/retrieval.md)."""

import argparse
from contextlib import ExitStack
from typing import Any

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.evaluation.distances import (
    Comparison,
    Side,
    describe_incomparable,
    measure_distances,
    names_present,
)
from demo_sdtps.evaluation.metrics import score_distances
from demo_sdtps.evaluation.tables import reid_record, reid_table
from demo_sdtps.retrieval.feature_sets import FeatureSet, open_features
from demo_sdtps.retrieval.features import decode_present
from demo_sdtps.retrieval.nearest import nearest, search_sets, write_csv
from demo_sdtps.runtime.distributed import check_single
from demo_sdtps.runtime.files import atomic_write, write_json

MAY_DIFFER = ("TEST.AMP", "TEST.MISS", "MODEL.DIST_TRAIN")
"""Configuration keys that change the rounding alone, as --dtype of an export does, what is present, or nothing."""


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
    keys = [getattr(each, attribute) for each in (query, gallery)]
    distances = measure_distances(comparison, side, gallery.present, gallery.take)
    ranking = score_distances(distances, (query.ids, gallery.ids), keys)
    caption = (
        f"{len(query)} queries of {query.place}, {len(gallery)} gallery samples of {gallery.place}, the same identity "
        f"and {key} excluded{'' if comparison.normalise else ', features not normalised'}, in percent"
    )
    return caption, reid_record({gallery.settings["return_pattern"]: ranking})


def check_comparable(query: FeatureSet, gallery: FeatureSet, normalise: bool) -> None:
    """Raise `UserError` where the features differ in weights, return pattern or configuration, or, without `normalise`, in
    whether they are normalised."""
    one, other = ({**side.settings, **side.settings["configuration"]} for side in (query, gallery))
    may_differ = {"configuration", "data_set", *MAY_DIFFER, *(["normalised"] if normalise else [])}
    for key in one:
        if key in other and key not in may_differ and one[key] != other[key]:
            values = "" if key == "checkpoint_sha256" else f", {one[key]!r} and {other[key]!r}"
            raise UserError(
                f"The features {query.place} and {gallery.place} are of different values of {key}{values}; export "
                "one of them again."
            )
