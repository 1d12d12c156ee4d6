"""mAP against operations of a checkpoint slimmed without training: demo-sdtps slim-curve --weight W --output curve.png"""

import argparse

from demo_sdtps.commands import flags
from demo_sdtps.config import cli


def main() -> None:
    parser = flags.config_parser(
        "Evaluate a checkpoint with slimming in the backbone (MODEL.SLIM_BLOCKS) that it was not trained with: for each score "
        "and setting the operations of the backbone against the dense model, and mAP and Rank-1 of TEST.RETURN_PATTERN."
    )
    parser.add_argument(
        "--scores",
        nargs="+",
        default=["saliency", "distinctness"],
        metavar="SCORE",
        help="MODEL.SLIM_SCORE of each curve (default: saliency distinctness)",
    )
    parser.add_argument(
        "--blocks",
        nargs="+",
        type=whole_numbers,
        metavar="B,B",
        help="MODEL.SLIM_BLOCKS of each setting, such as 2 1,3 (default: after a third, after a sixth and a half, before the "
        "first and after a third)",
    )
    parser.add_argument(
        "--keep",
        nargs="+",
        type=share,
        metavar="SHARE",
        help="share of the patches that each block of a setting keeps; every setting of --blocks with every share (default: "
        "0.65 and 0.5, 0.6 and 0.45, 0.4 and 0.5)",
    )
    cli.add_output(parser, "--output", *cli.PICTURE, help="draw the curve into this file")
    cli.add_output(parser, "--json", ".json", help="write it, in [0, 1], to this file")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.reports.slim_curve import evaluate_settings

    evaluate_settings(cfg, arguments)


def whole_numbers(text: str) -> list[int]:
    """Type of a flag for argparse: whole numbers that rise, such as 1,3."""
    numbers = [int(word) for word in text.split(",")]
    if numbers != sorted(set(numbers)) or numbers[0] < 0:
        raise argparse.ArgumentTypeError(f"{text} must rise, each block once")
    return numbers


def share(text: str) -> float:
    """Type of a flag for argparse: a number in (0, 1]."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 1]")
    return value
