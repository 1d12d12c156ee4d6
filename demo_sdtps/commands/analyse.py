"""The numbers behind an evaluation: python tools/analyse.py --weight W --json X.json --output X.png"""

import argparse

from demo_sdtps.config import UserError, cli
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import write_json


def main() -> None:
    parser = cli.config_parser(
        "Write the numbers behind an evaluation: mAP and Rank-1/5/10 in every case of missing modalities, average precision of "
        "every query and identity, mAP by camera of the query and of the gallery, rank lists, the worst queries, distances of "
        "positives and negatives, and the features in two dimensions (PCA, t-SNE). docs/getting_started.md describes the file.",
        checkpoint=cli.WEIGHT,
    )
    cli.add_return_pattern(parser, "features that are analysed")
    cli.add_output(parser, "--json", ".json", help="write the numbers to this file")
    cli.add_output(parser, "--output", *cli.PICTURE, help="draw them into this file")
    add_limits(parser, "the file")
    arguments, cfg = cli.parse(parser)
    if not (arguments.json or arguments.output):
        raise UserError(
            "There is nothing to write: give --json X.json for the numbers, --output X.png for plots, or both."
        )
    check_extra("tools/analyse.py", "report", {"sklearn": "scikit-learn"})
    from demo_sdtps.evaluation.command import load_model_and_data
    from demo_sdtps.evaluation.extraction import cases_of, extract_features
    from demo_sdtps.evaluation.protocol import make_test_data
    from demo_sdtps.evaluation.tables import PATTERN_NAMES, missing_table, reid_caption
    from demo_sdtps.reports.analysis import analyse, analysis_case, as_json
    from demo_sdtps.reports.analysis_figure import draw_analysis

    analysis_case(cfg)
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    cases = cases_of(model.modalities)
    patterns = extract_features(cfg, model, data.loader, list(cases.values()))
    features = dict(zip(cases, patterns, strict=True))
    analysis = analyse(cfg, data, features, arguments.queries, arguments.points)
    caption = reid_caption(cfg, data)
    if arguments.json:
        write_json(arguments.json, {"caption": caption, **as_json(cfg, data, analysis)})
    if arguments.output:
        about = "but for the first plot: " if len(cases) > 1 else ""
        about += f"return pattern {PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]}"
        draw_analysis(cfg, analysis, data, f"{caption}\n{about}", arguments.output)
    cli.print_lines(
        caption,
        missing_table(analysis.records),
        *filter(None, (arguments.json, arguments.output)),
    )


def add_limits(parser: argparse.ArgumentParser, where: str) -> None:
    """Add the flags that bound the size of a file."""
    cli.add_count(
        parser, "--queries", 500, f"rank lists in {where}: the worst, and a spread of others"
    )
    cli.add_count(parser, "--points", 1000, f"samples in the scatter plots of {where}")
