"""What demo-sdtps analyse and report do: the numbers behind an evaluation, a table of runs, and the page of a run."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg, with_values
from demo_sdtps.config.common import EMBEDDING_METHODS, print_lines
from demo_sdtps.config.load import flatten
from demo_sdtps.datasets.images import parallel
from demo_sdtps.evaluation import metrics, protocol, tables
from demo_sdtps.evaluation.protocol import CASES, Model, load_model_and_data, missing_cases
from demo_sdtps.modeling.checkpoints.loading import stored_config
from demo_sdtps.modeling.demo import DeMo, missing_modalities
from demo_sdtps.reports.figures import BEST, embed, spread
from demo_sdtps.reports.page import render, thumbnail
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.run import CONFIG, LAST

EXTRA_PACKAGES = {"jinja2": "jinja2", "plotly": "plotly", "sklearn": "scikit-learn"}
WORST = 20  # queries of an analysis


@dataclass
class Run:
    """A finished run: its configuration, the records of its training, and its last weights with their test data."""

    cfg: CfgNode
    records: list[dict[str, Any]]
    model: DeMo
    data: protocol.TestData
    record: tables.Record = field(default_factory=dict)  # of the weights, once they are evaluated

    @property
    def untrained(self) -> tables.Record | None:
        """The record before the training, where it was made with the options of this evaluation."""
        trained, first = load_cfg(Path(self.cfg.OUTPUT_DIR) / CONFIG), self.records[0]
        is_comparable = tables.options(trained) == tables.options(self.cfg)
        return first["patterns"] if first["epoch"] == 0 and is_comparable else None


def report_runs(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Evaluate the last checkpoints of the runs of --run, of which `cfg` is the first's, print tables, and write --html."""
    if arguments.html:
        check_extra("demo-sdtps report --html", "report", EXTRA_PACKAGES)
    runs = [load_run(cfg)]
    folders = vars(arguments)["OUTPUT_DIR"] or []
    for folder in folders[1:]:  # all before the first is evaluated, which may take long
        config = arguments.config_file or stored_config(Path(folder) / LAST)
        runs.append(load_run(load_cfg(config, [*arguments.opts, "OUTPUT_DIR", folder])))
    if arguments.html:
        results = analyse(runs[0].cfg, runs[0].model, runs[0].data, arguments)
        runs[0].record = results["cases"][results["missing"]]
    for run in runs[bool(arguments.html) :]:
        rankings = protocol.evaluate_reid(run.cfg, run.model, run.data)
        run.record = tables.reid_record(next(iter(rankings.values())))
    if arguments.html:
        write_page(arguments, runs, results)
    for run in runs:
        table = tables.reid_table(run.record, run.untrained)
        print_lines("", tables.reid_caption(run.cfg, run.data), table)
    print_lines(*filter(None, [arguments.html]))


def load_run(cfg: CfgNode) -> Run:
    """The run in OUTPUT_DIR with its last checkpoint; an error says which run cannot be evaluated."""
    records = evaluated_run(Path(cfg.OUTPUT_DIR))
    cfg = with_values(cfg, {"TEST.WEIGHT": str(Path(cfg.OUTPUT_DIR) / LAST)})
    try:
        model, splits = load_model_and_data(cfg)
        return Run(cfg, records, model, protocol.make_test_data(cfg, **splits))
    except UserError as error:
        raise UserError(f"The run {cfg.OUTPUT_DIR} cannot be evaluated: {error}") from None


def evaluated_run(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's metrics.json."""
    records = tables.read_records(folder)
    if not tables.evaluated_records(records):
        raise UserError(
            f"The run {folder} has no {tables.METRICS} with evaluated epochs; train first, or give the OUTPUT_DIR of a "
            "training."
        )
    return records


def analyse(
    cfg: CfgNode, model: Model, data: protocol.TestData, limits: argparse.Namespace
) -> dict[str, Any]:
    """The content of an analysis (docs/getting_started.md): plain lists, dicts and numbers, with at most `limits.queries` rank
    lists and `limits.points` samples in two dimensions. All but the cases and the sets of modalities is of TEST.RETURN_PATTERN
    in the case of TEST.MISS."""
    missing = missing_modalities(cfg.TEST.MISS)
    cases = missing_cases(model.modalities)
    case = next(name for name, each in CASES.items() if each == missing)
    features = protocol.extract_cases(cfg, model, data, cases)
    chosen = features[case][cfg.TEST.RETURN_PATTERN]
    ranking = protocol.ranked_distances(cfg, chosen, data), *data.labels
    scores = metrics.score_queries(*ranking)
    order = scores.average_precision.argsort(kind="stable")  # NaN last, of queries without a match
    worst = order[: min(WORST, limits.queries, data.matched)].tolist()
    others = spread(len(data.query), limits.queries - len(worst))
    listed = sorted({*worst, *others})
    nearest = metrics.nearest_samples(*ranking, np.array(listed), BEST)
    gallery, shown = data.gallery.tolist(), spread(len(data.samples), limits.points)
    shown_features = protocol.normalise(cfg, chosen[shown]).numpy()
    methods = progress(EMBEDDING_METHODS.items(), "features in two dimensions", unit="method")
    # JSON has no NaN
    precisions = [None if each != each else each for each in scores.average_precision.tolist()]
    columns = data.query.tolist(), precisions, scores.first_match.tolist()

    def record(patterns: dict[int, torch.Tensor]) -> tables.Record:
        """The record of features (samples, D) by return pattern."""
        pairs = patterns.items()
        return tables.reid_record({n: protocol.rank_features(cfg, f, data, n) for n, f in pairs})

    return {
        "weight": cfg.TEST.WEIGHT,
        "return_pattern": cfg.TEST.RETURN_PATTERN,
        "missing": case,
        "options": tables.options(cfg).removeprefix(", "),
        "cases": {name: record(patterns) for name, patterns in features.items()},
        "cross_modal": protocol.rank_sets(cfg, model, features, data),
        "samples": [vars(sample) for sample in data.samples],
        "queries": [
            {"sample": sample, "average_precision": average, "first_match": rank}
            for sample, average, rank in zip(*columns, strict=True)
        ],
        "rank_lists": [
            {"query": q, "nearest": [h._asdict() | {"sample": gallery[h.sample]} for h in hits]}
            for q, hits in zip(listed, nearest, strict=True)
        ],
        "worst_queries": worst,
        "scatter": {"samples": shown}
        | {
            title: embed(shown_features, method, cfg.SOLVER.SEED).tolist()
            for method, title in methods
        },
    }


def write_page(arguments: argparse.Namespace, runs: Sequence[Run], results: dict[str, Any]) -> None:
    """Write the page of the first run by its analysis, and of those that it is compared with."""
    from plotly.offline import get_plotlyjs

    cfg, model, data = runs[0].cfg, runs[0].model, runs[0].data
    # the most needed first: the worst queries, the others, their nearest, and the points
    lists = sorted(
        results["rank_lists"], key=lambda one: one["query"] not in results["worst_queries"]
    )
    queries = [results["queries"][one["query"]]["sample"] for one in lists]
    nearest = [hit["sample"] for one in lists for hit in one["nearest"]]
    indices = list(dict.fromkeys([*queries, *nearest, *results["scatter"]["samples"]]))
    samples = {index: data.samples[index] for index in indices}
    images = {index: samples[index] for index in indices[: arguments.thumbnails]}
    draw = partial(thumbnail, cfg, modalities=cfg.MODEL.MODALITIES)
    thumbnails = parallel(draw, list(images.values()), "making thumbnails", "triplet")
    page = render(
        "report.html",
        cfg,
        model,
        images,
        cfg.MODEL.MODALITIES,
        plotly=get_plotlyjs(),
        title=Path(cfg.OUTPUT_DIR).resolve().name,
        named=named_by_folder,
        data=data,
        analysis=results,
        samples=samples,
        thumbnails=dict(zip(images, thumbnails, strict=True)),
        key=protocol.exclude_key(cfg),
        runs=runs,
        settings=[flatten(named_by_folder(run.cfg)) for run in runs],
        tables=tables,
        nearest=BEST,
    )
    with atomic_write(arguments.html) as temporary:
        temporary.write_text(page, encoding="utf-8")


def named_by_folder(cfg: CfgNode) -> CfgNode:
    """`cfg` with the name of the data's folder in place of its path, as the page may be shown on another machine."""
    name = Path(cfg.DATASETS.ROOT_DIR).resolve().name
    return with_values(cfg, {"DATASETS.ROOT_DIR": name})
