"""Draw the training curves of a run: python tools/draw_curves.py --run runs/demo"""

import argparse
from pathlib import Path

from demo_sdtps.config.cli import PICTURE, add_output, check_outputs, print_lines, read_arguments


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Draw loss, accuracy, mAP and Rank-1 over the epochs of a run."
    )
    parser.add_argument(
        "--run", type=Path, required=True, metavar="DIR", help="OUTPUT_DIR of a training"
    )
    add_output(parser, "--output", *PICTURE, help="default: DIR/curves.png")
    arguments = read_arguments(parser)
    from demo_sdtps.reports.curves import IMAGE, draw_curves, evaluated_run

    arguments.output = arguments.output or arguments.run / IMAGE
    check_outputs(arguments)
    print_lines(draw_curves(evaluated_run(arguments.run), arguments.output))
