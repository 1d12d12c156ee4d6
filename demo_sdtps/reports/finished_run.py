"""What tools/report.py does: a finished run's images and table, or its page."""

import argparse
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.cross_modal import rank_sets
from demo_sdtps.evaluation.extraction import CASES, cases_of, extract_features
from demo_sdtps.evaluation.protocol import make_test_data
from demo_sdtps.evaluation.tables import options, reid_caption, reid_table
from demo_sdtps.reports.analysis import analyse, analysis_case, rank_patterns
from demo_sdtps.reports.curves import IMAGE, draw_curves, evaluated_run
from demo_sdtps.reports.ranks import draw_ranks
from demo_sdtps.reports.report_page import EXTRA_PACKAGES, write_page
from demo_sdtps.reports.tokens import draw_tokens
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import check_output_file
from demo_sdtps.training.output import CONFIG, LAST


def report_run(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Evaluate the run's last checkpoint, write the images or the page, and print its table."""
    others = {run: evaluated_run(Path(run)) for run in (vars(arguments)["OUTPUT_DIR"] or [])[1:]}
    output = Path(cfg.OUTPUT_DIR)
    if arguments.html:
        check_extra("tools/report.py --html", "report", EXTRA_PACKAGES)
    elif others:
        raise UserError(
            "Several --run are compared on a page; add --html X.html, or give one --run."
        )
    else:
        curves, ranks, tokens = (
            check_output_file(output / name, ".png", arguments.overwrite)
            for name in (IMAGE, "ranks.png", "tokens.png")
        )
    records = evaluated_run(output)
    cfg = with_values(cfg, {"TEST.WEIGHT": str(output / LAST)})
    case = analysis_case(cfg)
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    cases = cases_of(model.modalities) if arguments.html else {case: CASES[case]}
    extracted = extract_features(cfg, model, data.loader, list(cases.values()))
    by_case = dict(zip(cases, extracted, strict=True))
    features = by_case[case]
    # Scored here rather than read from the records, so that table and images show the same weights.
    record = rank_patterns(cfg, features, data.without(CASES[case]))
    # The untrained model is comparable only where it was evaluated with the same options.
    recorded = records[0]["epoch"] == 0 and options(load_cfg(output / CONFIG)) == options(cfg)
    untrained = records[0]["patterns"] if recorded else None
    if arguments.html:
        analysis = analyse(cfg, data, by_case, arguments.queries, arguments.points)
        matrices = rank_sets(cfg, model, by_case, data)
        runs = {cfg.OUTPUT_DIR: records, **others}
        page, thumbnails = arguments.html, arguments.thumbnails
        write_page(page, cfg, model, data, analysis, runs, untrained, matrices, thumbnails)
        drawn = {"page": arguments.html}
    else:
        drawn = {
            "training curves": draw_curves(records, curves),
            "rank lists": draw_ranks(cfg, features[cfg.TEST.RETURN_PATTERN], data, ranks),
        }
        if model.sdtps or model.slimming:
            drawn["kept tokens"] = draw_tokens([(cfg, model)], splits["query"], tokens)
    print_lines(
        "",
        reid_caption(cfg, data),
        *reid_table(record, untrained).splitlines(),
        "",
        *(f"{what + ':':18}{path}" for what, path in drawn.items()),
    )
