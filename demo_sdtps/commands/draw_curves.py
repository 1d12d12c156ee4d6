"""Draw the training curves of a run: demo-sdtps draw curves --run runs/demo"""

import argparse

from demo_sdtps.config import cli


def main() -> None:
    description = "Draw loss, accuracy, mAP and Rank-1 over the epochs of a run."
    parser = argparse.ArgumentParser(description=description)
    cli.add_path(parser, "--run", "DIR", "OUTPUT_DIR of a training")
    cli.add_output(parser, "--output", *cli.PICTURE, help="default: DIR/curves.png")
    arguments = cli.read_arguments(parser)
    from demo_sdtps.reports.curves import IMAGE, draw_curves, evaluated_run

    arguments.output = arguments.output or arguments.run / IMAGE
    cli.check_outputs(arguments)
    cli.print_lines(draw_curves(evaluated_run(arguments.run), arguments.output))
