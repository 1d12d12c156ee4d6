"""Draw which patches slimming and SDTPS keep: python tools/draw_tokens.py --weight W --output tokens.png"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

from demo_sdtps.config.cli import WEIGHT, add_picture, config_parser, parse, positive_int, print_lines, run


def main() -> None:
    parser = config_parser("Draw triplets, and beside them the patches that every stage of slimming and SDTPS keep; the "
                           "others are covered.", checkpoint=WEIGHT, images=True)
    add_picture(parser, "tokens.png")
    parser.add_argument("--samples", type=positive_int, default=8, metavar="N",
                        help="triplets, spread over the split (default: 8)")
    arguments, cfg = parse(parser)
    from demo_sdtps.evaluation.command import load_model_and_data
    from demo_sdtps.evaluation.selection import check_selection
    from demo_sdtps.reports.tokens import draw_tokens

    check_selection(cfg)
    model, splits = load_model_and_data(cfg, ("query",))
    print_lines(draw_tokens(cfg, model, splits["query"], arguments.output, arguments.samples))


if __name__ == "__main__":
    run(main)
