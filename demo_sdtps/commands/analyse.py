"""The numbers behind an evaluation: demo-sdtps analyse --weight W --json X.json"""

import argparse

from demo_sdtps.commands import flags
from demo_sdtps.config import cli
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import write_json


def main() -> None:
    parser = flags.config_parser(
        "Write the numbers behind an evaluation: mAP and Rank-1/5/10 in every case of missing modalities, average precision of "
        "every query and identity, mAP by camera of the query and of the gallery, rank lists, the worst queries, distances of "
        "positives and negatives, and the features in two dimensions (PCA, t-SNE). docs/getting_started.md describes the file."
    )
    flags.add_return_pattern(parser, "features that are analysed")
    cli.add_output(parser, "--json", ".json", required=True, help="write the numbers to this file")
    add_limits(parser, "the file")
    arguments, cfg = flags.parse(parser)
    check_extra("demo-sdtps analyse", "report", {"sklearn": "scikit-learn"})
    from demo_sdtps.evaluation.extraction import (
        extract_features,
        load_any_model_and_data,
        missing_cases,
    )
    from demo_sdtps.evaluation.protocol import make_test_data
    from demo_sdtps.evaluation.tables import missing_table, reid_caption
    from demo_sdtps.reports.analysis import analyse, analysis_case

    analysis_case(cfg)
    model, splits = load_any_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    cases = missing_cases(model.modalities)
    patterns = extract_features(cfg, model, data.loader, list(cases.values()))
    features = dict(zip(cases, patterns, strict=True))
    content = analyse(cfg, data, features, arguments.queries, arguments.points)
    caption = reid_caption(cfg, data)
    write_json(arguments.json, {"caption": caption, **content})
    cli.print_lines(caption, missing_table(content["cases"]), arguments.json)


def add_limits(parser: argparse.ArgumentParser, where: str) -> None:
    """Add the flags that bound the size of a file."""
    cli.add_count(
        parser, "--queries", 500, f"rank lists in {where}: the worst, and a spread of others"
    )
    cli.add_count(parser, "--points", 1000, f"samples in the scatter plots of {where}")
