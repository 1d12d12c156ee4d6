"""What demo-sdtps report does: a finished run's images and table, its page, or a table of several runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.evaluation.extraction import (
    CASES,
    extract_features,
    load_model_and_data,
    missing_cases,
)
from demo_sdtps.evaluation.operations import count_macs, dense_macs
from demo_sdtps.evaluation.protocol import make_test_data, rank_sets
from demo_sdtps.evaluation.tables import (
    MEASURES,
    Table,
    markdown_table,
    options,
    reid_caption,
    reid_table,
    spread,
    write_tables,
)
from demo_sdtps.reports.analysis import analyse, analysis_case, rank_patterns
from demo_sdtps.reports.curves import draw_curves, evaluated_run, run_config
from demo_sdtps.reports.ranks import draw_ranks
from demo_sdtps.reports.report_page import EXTRA_PACKAGES, Run, write_page
from demo_sdtps.reports.tokens import draw_tokens
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import check_output_file
from demo_sdtps.training.output import CONFIG, LAST

IMAGES = {"curves": "training curves", "ranks": "rank lists", "tokens": "kept tokens"}


def report_run(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Evaluate the run's last checkpoint, write the images or the page, and print its table; with further runs one of all, each
    evaluated on its own data."""
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
    recorded = records[0]["epoch"] == 0 and options(load_cfg(output / CONFIG)) == options(cfg)
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
    print_lines(
        "",
        reid_caption(cfg, data),
        reid_table(run.record, untrained),
        "",
        *(f"{what + ':':18}{path}" for what, path in written.items()),
    )
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
        scores = ([100 * run.record[pattern][measure] for run in alike] for measure in MEASURES)
        macs, dense = count_macs(cfg, alike[0].model)[""], dense_macs(cfg)
        costs = f"{macs / 1e9:.2f}", f"{macs / dense:.1%}"
        row = [name, ", ".join(map(str, seeds)), *map(spread, scores), *costs]
        rows.append([*row, alike[0].test_split])
    table = Table(("run", "seeds", *MEASURES, "GMACs", "of the dense model", "test split"), rows)
    print_lines("", "In percent, after the last epoch:", "", markdown_table(*table))
    write_tables(table, arguments.csv, arguments.latex)


def load_run(cfg: CfgNode) -> Run:
    """A run with its last checkpoint; a message on what is missing names the run."""
    records = evaluated_run(Path(cfg.OUTPUT_DIR))
    cfg = with_values(cfg, {"TEST.WEIGHT": str(Path(cfg.OUTPUT_DIR) / LAST)})
    try:
        model, splits = load_model_and_data(cfg)
        return Run(cfg, records, model, splits["query"], make_test_data(cfg, **splits))
    except UserError as error:
        raise UserError(f"The run {cfg.OUTPUT_DIR} cannot be evaluated: {error}") from None
