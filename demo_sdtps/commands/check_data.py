"""Counts of a data set beside the expected ones, and how to fix them: demo-sdtps check --config_file F"""

import argparse
import sys
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.commands import cli, flags
from demo_sdtps.config.keys import Schema
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.datasets import find_reader
from demo_sdtps.runtime.files import write_json


def main() -> None:
    arguments, cfg = parse(DEMO_SCHEMA)
    from demo_sdtps.reports.data import check_triplets

    folder = find_reader(cfg).folder_in(Path(cfg.DATASETS.ROOT_DIR))
    findings = check_triplets(cfg, arguments.decode)
    report_findings(arguments, cfg, findings, folder)


def parse(schema: Schema) -> tuple[argparse.Namespace, CfgNode]:
    parser = flags.config_parser(
        "Read a data set, and print its counts by split beside the expected ones, where known (docs/train.md).",
        "exit code: 0 if training can start; 1 if it can, but a count is not the expected one; 2, with a sentence, if not",
        schema,
        weight="",
    )
    cli.add_switch(parser, "--decode", "decode every image, and name those that are damaged")
    cli.add_output(parser, "--json", ".json", help="write counts and warnings there as well")
    return flags.parse(parser)


def report_findings(
    arguments: argparse.Namespace, cfg: CfgNode, findings: dict[str, Any], folder: Path
) -> None:
    """Print and write findings in the form of `check_triplets`, and exit with 1 where counts are not the expected."""
    if arguments.json:
        about = {"data set": cfg.DATASETS.NAMES, "folder": str(folder)}
        write_json(arguments.json, {**about, **findings, "decoded": arguments.decode})
    from demo_sdtps.reports.data import count_table

    decoded = "every" if arguments.decode else "without --decode, not every"
    cli.print_lines(
        f"{cfg.DATASETS.NAMES} in {folder}",
        count_table(findings["counts"], findings["expected"]),
        *findings["warnings"],
        *(f"WARNING: {sentence}" for sentence in findings["differences"]),
        f"{arguments.config_file} can train on it; {decoded} image was decoded.",
    )
    sys.exit(1 if findings["differences"] else 0)
