"""Parameters and multiply-accumulates of a model: python tools/profile_flops.py --config_file F

The cost of HDM's reference formulation, in which published figures count, is printed beside that of the shortcut in use.
"""

from demo_sdtps.config import cli


def main() -> None:
    parser = cli.config_parser(
        "Print the trainable parameters and GMACs of one triplet, per part and in total."
    )
    parser.add_argument(
        "--num_class",
        type=cli.positive_int,
        default=171,
        help="training identities (default: 171, as RGBNT201)",
    )
    parser.add_argument(
        "--camera_num", type=cli.positive_int, default=4, help="cameras (default: 4)"
    )
    arguments, cfg = cli.parse(parser)
    from demo_sdtps.evaluation.operations import operations_table
    from demo_sdtps.modeling import make_model

    height, width = cfg.INPUT.SIZE_TEST
    cli.print_lines(
        f"{cfg.MODEL.TRANSFORMER_TYPE}, one triplet of {height}×{width}, {arguments.num_class} classes, "
        f"{arguments.camera_num} cameras",
        *operations_table(cfg, make_model(cfg, arguments.num_class, arguments.camera_num).eval()),
    )
