"""Parameters and multiply-accumulates of a model: python tools/profile_flops.py --config_file F

The cost of HDM's reference formulation, in which published figures count, is printed beside that of the shortcut in use.
"""

from demo_sdtps.config import cli


def main() -> None:
    description = "Print the trainable parameters and GMACs of one triplet, per part and in total."
    parser = cli.config_parser(description)
    cli.add_count(parser, "--num_class", 171, "training identities, as of RGBNT201")
    cli.add_count(parser, "--camera_num", 4, "cameras")
    arguments, cfg = cli.parse(parser)
    from demo_sdtps.evaluation.operations import operations_table
    from demo_sdtps.modeling import make_model

    height, width = cfg.INPUT.SIZE_TEST
    model = make_model(cfg, arguments.num_class, arguments.camera_num).eval()
    cli.print_lines(
        f"{cfg.MODEL.TRANSFORMER_TYPE}, one triplet of {height}×{width}, {arguments.num_class} classes, "
        f"{arguments.camera_num} cameras",
        *operations_table(cfg, model),
    )
