"""What demo-sdtps report does: a finished run's images and table, its page, or a table of several runs."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.load import flatten
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.images import parallel
from demo_sdtps.evaluation import tables
from demo_sdtps.evaluation.extraction import (
    CASES,
    extract_features,
    load_model_and_data,
    missing_cases,
)
from demo_sdtps.evaluation.operations import count_macs, dense_macs
from demo_sdtps.evaluation.protocol import (
    CrossModal,
    TestData,
    exclude_key,
    make_test_data,
    rank_sets,
)
from demo_sdtps.modeling import DeMo
from demo_sdtps.reports.evaluation import (
    NEAREST,
    analyse,
    analysis_case,
    draw_curves,
    draw_ranks,
    evaluated_run,
    rank_patterns,
    run_config,
)
from demo_sdtps.reports.page import render, thumbnail
from demo_sdtps.reports.tokens import draw_tokens
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import atomic_write, check_output_file
from demo_sdtps.training.output import CONFIG, LAST

EXTRA_PACKAGES = {"jinja2": "jinja2", "plotly": "plotly", "sklearn": "scikit-learn"}
SHOWN = ("queries", "rank_lists", "worst_queries", "identities", "distances", "scatter")
"""Of an analysis, what the page's scripts draw."""
IMAGES = {"curves": "training curves", "ranks": "rank lists", "tokens": "kept tokens"}


@dataclass
class Run:
    """A finished run: its configuration, the records of its training, model, queries and data."""

    cfg: CfgNode
    records: list[dict[str, Any]]
    model: DeMo
    queries: list[Sample]
    data: TestData
    # of the last checkpoint on its own test split, once evaluated
    record: tables.Record = field(default_factory=dict)

    @property
    def test_split(self) -> str:
        """What it is evaluated on."""
        named = named_by_folder(self.cfg)
        return f"{tables.data_caption(named, self.data)}{tables.options(self.cfg)}"


def write_page(
    path: Path,
    compared: Sequence[Run],
    analysis: Mapping[str, Any],
    untrained: tables.Record | None,
    cross_modal: CrossModal,
    thumbnails: int,
) -> None:
    """Write the page of what `analyse` returns, with the images of at most `thumbnails` triplets. `compared` are the run, and
    those that it is compared with, `untrained` is the record before training, `cross_modal` that of `rank_sets`."""
    from plotly.offline import get_plotlyjs

    cfg, model, data = compared[0].cfg, compared[0].model, compared[0].data
    runs = {run.cfg.OUTPUT_DIR: run for run in compared}
    modalities, indices = cfg.MODEL.MODALITIES, page_samples(analysis)
    samples = {index: data.samples[index] for index in indices}
    shown = {index: samples[index] for index in indices[:thumbnails]}
    draw = partial(thumbnail, cfg, modalities=modalities)
    images = parallel(draw, list(shown.values()), "making thumbnails", "triplet")
    content = {
        **{name: analysis[name] for name in SHOWN},
        "runs": [{"name": name, "records": run.records} for name, run in runs.items()],
        "patterns": list(tables.PATTERN_NAMES.values()),
        "samples": {index: sample_labels(cfg, sample) for index, sample in samples.items()},
        "thumbnails": dict(zip(shown, images, strict=True)),
    }
    page = render(
        "report.html",
        cfg,
        model,
        shown,
        modalities,
        content,
        plotly=get_plotlyjs(),
        files=False,
        title=Path(cfg.OUTPUT_DIR).resolve().name,
        caption=tables.reid_caption(named_by_folder(cfg), data),
        settings=named_by_folder(cfg).dump(),
        data=data,
        analysis=analysis,
        record=analysis["cases"][analysis["missing"]],
        cameras=[camera + 1 for camera in analysis["camera_matrix"]["cameras"]],
        patterns={str(pattern): name for pattern, name in tables.PATTERN_NAMES.items()},
        pattern=str(cfg.TEST.RETURN_PATTERN),
        missing=tables.missing_rows(analysis["cases"]),
        runs=runs,
        differing=differing([run.cfg for run in runs.values()]),
        untrained=untrained,
        cross_modal=cross_modal,
        tables=tables,
        key=exclude_key(cfg),
        nearest=NEAREST,
    )
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def named_by_folder(cfg: CfgNode) -> CfgNode:
    """`cfg` with the name of the data's folder in place of its path, as the page may be shown on another machine."""
    name = Path(cfg.DATASETS.ROOT_DIR).resolve().name
    return with_values(cfg, {"DATASETS.ROOT_DIR": name})


def differing(cfgs: Sequence[CfgNode]) -> dict[str, list[object]]:
    """The keys in which the configurations of runs differ, with the value of each."""
    first, *others = map(flatten, cfgs)
    shown = [flatten(named_by_folder(cfg)) for cfg in cfgs]
    return {
        key: [values[key] for values in shown]
        for key, value in sorted(first.items())
        if key not in ("OUTPUT_DIR", "TEST.WEIGHT") and any(other[key] != value for other in others)
    }


def page_samples(analysis: Mapping[str, Any]) -> list[int]:
    """Indices of the samples in the page, the most needed first: the queries, their nearest, those of the lowest average
    precision first, and the points."""

    def precision(rank_list: Mapping[str, Any]) -> float:
        value = analysis["queries"][rank_list["query"]]["average_precision"]
        return 2.0 if value is None else value  # without a match, last

    lists = sorted(analysis["rank_lists"], key=precision)
    queries = [analysis["queries"][one["query"]]["sample"] for one in lists]
    nearest = [hit["sample"] for one in lists for hit in one["nearest"]]
    return list(dict.fromkeys([*queries, *nearest, *analysis["scatter"]["samples"]]))


def sample_labels(cfg: CfgNode, sample: Sample) -> dict[str, object]:
    """What the page says of a sample; cameras from 1, as file names have them."""
    labels = {"identity": sample.identity, "camera": sample.camera + 1}
    if exclude_key(cfg) == "scene":
        labels["scene"] = sample.scene
    return {**labels, "name": Path(sample.files[0]).name}


def report_run(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Evaluate the last checkpoint of the run, write images or page, and print its table; of further runs one of all."""
    folders, output = vars(arguments)["OUTPUT_DIR"] or [], Path(cfg.OUTPUT_DIR)
    if len({Path(run).resolve() for run in folders}) < len(folders):
        raise UserError("--run names one run twice; give each run once.")
    files: dict[str, Path] = {}
    if arguments.html:
        check_extra("demo-sdtps report --html", "report", EXTRA_PACKAGES)
    elif len(folders) < 2:
        for name in IMAGES:
            file = output / f"{name}{arguments.figures}"
            files[name] = check_output_file(file, file.suffix, arguments.overwrite)
    run = load_run(cfg)
    cfg, records, model, data = run.cfg, run.records, run.model, run.data
    # before the first is evaluated, which may take long
    others = []
    for folder in folders[1:]:
        config = arguments.config_file or run_config(Path(folder))
        others.append(load_run(load_cfg(config, [*arguments.opts, "OUTPUT_DIR", folder])))
    if others and not arguments.html:
        evaluate_runs([run, *others])
        return write_table(arguments, [run, *others])
    case = analysis_case(cfg)
    cases = missing_cases(model.modalities) if arguments.html else {case: CASES[case]}
    extracted = extract_features(cfg, model, data.loader, list(cases.values()))
    by_case = dict(zip(cases, extracted, strict=True))
    # Scored here rather than read from the records, so that table and images show the same weights.
    run.record = rank_patterns(cfg, by_case[case], data)
    # The untrained model is comparable only where it was evaluated with the same options.
    trained = load_cfg(output / CONFIG)
    recorded = records[0]["epoch"] == 0 and tables.options(trained) == tables.options(cfg)
    untrained = records[0]["patterns"] if recorded else None
    if arguments.html:
        analysis = analyse(cfg, data, by_case, arguments.queries, arguments.points)
        matrices = rank_sets(cfg, model, by_case, data)
        evaluate_runs(others)
        page, thumbnails = arguments.html, arguments.thumbnails
        write_page(page, [run, *others], analysis, untrained, matrices, thumbnails)
        written = {"page": page}
    else:
        draw_curves(records, files["curves"])
        draw_ranks(cfg, by_case[case][cfg.TEST.RETURN_PATTERN], data, files["ranks"])
        if model.sdtps or model.slimming:
            draw_tokens([(cfg, model)], run.queries, files["tokens"])
        else:
            del files["tokens"]
        written = {IMAGES[name]: path for name, path in files.items()}
    table = tables.reid_table(run.record, untrained)
    files_lines = (f"{what + ':':18}{path}" for what, path in written.items())
    print_lines("", tables.reid_caption(cfg, data), table, "", *files_lines)
    if others or arguments.csv or arguments.latex:
        write_table(arguments, [run, *others])


def evaluate_runs(runs: Sequence[Run]) -> None:
    """Fill in the records of the last checkpoints, each on its own data."""
    for run in runs:
        (features,) = extract_features(run.cfg, run.model, run.data.loader)
        run.record = rank_patterns(run.cfg, features, run.data)


def write_table(arguments: argparse.Namespace, runs: Sequence[Run]) -> None:
    """Print and write the table of runs, a row for those that differ in their seed alone."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        same = {"OUTPUT_DIR": "", "TEST.WEIGHT": "", "SOLVER.SEED": 0}
        key, seed = with_values(run.cfg, same).dump(), run.cfg.SOLVER.SEED
        key += run.cfg.OUTPUT_DIR * (seed in groups.get(key, ()))  # a run of one seed again
        groups.setdefault(key, {})[seed] = run
    rows = []
    for seeds in groups.values():
        alike = [*seeds.values()]
        cfg, pattern = alike[0].cfg, str(alike[0].cfg.TEST.RETURN_PATTERN)
        name = cfg.OUTPUT_DIR + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
        scores = ([100 * run.record[pattern][one] for run in alike] for one in tables.MEASURES)
        macs, dense = count_macs(cfg, alike[0].model)[""], dense_macs(cfg)
        costs = f"{macs / 1e9:.2f}", f"{macs / dense:.1%}"
        row = [name, ", ".join(map(str, seeds)), *map(tables.spread, scores), *costs]
        rows.append([*row, alike[0].test_split])
    titles = ("run", "seeds", *tables.MEASURES, "GMACs", "of the dense model", "test split")
    table = tables.Table(titles, rows)
    print_lines("", "In percent, after the last epoch:", "", tables.markdown_table(*table))
    tables.write_tables(table, arguments.csv, arguments.latex)


def load_run(cfg: CfgNode) -> Run:
    """A run with its last checkpoint; a message on what is missing names the run."""
    records = evaluated_run(Path(cfg.OUTPUT_DIR))
    cfg = with_values(cfg, {"TEST.WEIGHT": str(Path(cfg.OUTPUT_DIR) / LAST)})
    try:
        model, splits = load_model_and_data(cfg)
        return Run(cfg, records, model, splits["query"], make_test_data(cfg, **splits))
    except UserError as error:
        raise UserError(f"The run {cfg.OUTPUT_DIR} cannot be evaluated: {error}") from None
