"""Images and a table of a finished run: demo-sdtps report --run runs/demo [KEY VALUE …]"""

from pathlib import Path

from demo_sdtps.commands import flags
from demo_sdtps.commands.analyse import add_limits
from demo_sdtps.config import cli
from demo_sdtps.config.load import StoredText


def main() -> None:
    parser = flags.config_parser(
        "Draw a finished run's training curves, rank lists and kept tokens into its OUTPUT_DIR, and print its table: mAP and "
        "Rank-1/5/10 of the last epoch beside the untrained model's mAP; of several --run one table with operations, their "
        "share of the dense model's, and mean and deviation over seeds. --html writes a page instead of the images, with rank "
        "lists to filter (docs/getting_started.md).",
        weight="",
    )
    run = "the OUTPUT_DIR of a training"
    flags.add_stored(parser, "--run", "DIR", run, "OUTPUT_DIR", read_config, several=True)
    cli.add_tables(parser)
    cli.add_choice(parser, "--figures", cli.PICTURE, ".png", "suffix of the images")
    cli.add_output(parser, "--html", ".html", help="write it, and more, as a page for browsers")
    add_limits(parser, "the page")
    cli.add_count(parser, "--thumbnails", 1200, "triplets whose images the page has, 7 kB each")
    flags.add_skip_unreadable(parser)
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.datasets.unreadable import print_left_out
    from demo_sdtps.reports.finished_run import report_run

    report_run(arguments, cfg)
    print_left_out()


def read_config(run: Path) -> StoredText:
    from demo_sdtps.reports.curves import run_config

    return run_config(run)
