"""Draw the training curves of a run: python tools/draw_curves.py --run runs/demo"""

import argparse
from pathlib import Path

from demo_sdtps.config import cli


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Draw loss, accuracy, mAP and Rank-1 over the epochs of a run."
    )
    parser.add_argument(
        "--run", type=Path, required=True, metavar="DIR", help="OUTPUT_DIR of a training"
    )
    cli.add_output(parser, "--output", *cli.PICTURE, help="default: DIR/curves.png")
    arguments = cli.read_arguments(parser)
    from demo_sdtps.reports.curves import IMAGE, draw_curves, evaluated_run

    arguments.output = arguments.output or arguments.run / IMAGE
    cli.check_outputs(arguments)
    cli.print_lines(draw_curves(evaluated_run(arguments.run), arguments.output))
