"""Images and a table of a finished run: demo-sdtps report --run runs/demo [KEY VALUE …]"""

from demo_sdtps.commands.analyse import add_limits
from demo_sdtps.config import cli


def main() -> None:
    parser = cli.config_parser(
        "Draw a finished run's training curves, rank lists and kept tokens into its OUTPUT_DIR, and print its table: mAP and "
        "Rank-1/5/10 of the last epoch beside the untrained model's mAP. --html writes a page instead of the images, with rank "
        "lists to filter, and compares it with further --run there (docs/getting_started.md).",
        checkpoint=cli.CheckpointFlag(
            "run",
            "DIR",
            "the OUTPUT_DIR of a training",
            "OUTPUT_DIR",
            "demo_sdtps.reports.curves:run_config",
            several=True,
        ),
    )
    cli.add_output(parser, "--html", ".html", help="write it, and more, as a page for browsers")
    add_limits(parser, "the page")
    cli.add_count(parser, "--thumbnails", 1200, "triplets whose images the page has, 7 kB each")
    arguments, cfg = cli.parse(parser)
    from demo_sdtps.reports.finished_run import report_run

    report_run(arguments, cfg)
