"""Counts of a data set beside the expected ones, and how to fix them: demo-sdtps check --config_file F"""

import sys
from pathlib import Path

from demo_sdtps.config import cli
from demo_sdtps.config.load import DEMO_SCHEMA
from demo_sdtps.datasets import find_reader
from demo_sdtps.runtime.files import write_json
from demo_sdtps.seps.schema import SEPS_SCHEMA


def main() -> None:
    parser = cli.config_parser(
        "Read a data set, re-identification or image-text, and print its counts by split beside the expected ones, where known "
        "(docs/data.md).",
        "exit code: 0 if training can start; 1 if it can, but a count is not the expected one; 2, with a sentence, if not",
        DEMO_SCHEMA,
        SEPS_SCHEMA,
    )
    cli.add_switch(parser, "--decode", "decode every image, and name those that are damaged")
    cli.add_output(parser, "--json", ".json", help="write counts and warnings there as well")
    arguments, cfg = cli.parse(parser)
    from demo_sdtps.reports.data import check_captions, check_triplets, count_table

    is_seps = arguments.schema is SEPS_SCHEMA
    findings = (check_captions if is_seps else check_triplets)(cfg, arguments.decode)
    root = Path(cfg.DATASETS.ROOT_DIR)
    folder = root / cfg.DATASETS.NAMES if is_seps else find_reader(cfg).folder_in(root)
    if arguments.json:
        about = {"data set": cfg.DATASETS.NAMES, "folder": str(folder)}
        write_json(arguments.json, {**about, **findings, "decoded": arguments.decode})
    decoded = "every" if arguments.decode else "without --decode, not every"
    cli.print_lines(
        f"{cfg.DATASETS.NAMES} in {folder}",
        *count_table(findings),
        *findings["complete"],
        *findings["warnings"],
        *(f"WARNING: {sentence}" for sentence in findings["differences"]),
        f"{arguments.config_file} can train on it; {decoded} image was decoded.",
    )
    sys.exit(1 if findings["differences"] else 0)
