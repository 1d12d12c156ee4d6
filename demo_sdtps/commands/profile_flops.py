"""Parameters and multiply-accumulates of a model: python tools/profile_flops.py --weight W

The cost of HDM's reference formulation, in which published figures count, is printed beside that of the shortcut in use.
"""

from demo_sdtps.config import cli

CLASSES, CAMERAS = 171, 4


def main() -> None:
    description = "Print the trainable parameters and GMACs of one triplet, per part and in total."
    parser = cli.config_parser(description, checkpoint=cli.WEIGHT)
    default = "default: those of the checkpoint, without one {}, as of RGBNT201"
    cli.add_count(parser, "--num_class", None, f"training identities ({default.format(CLASSES)})")
    cli.add_count(parser, "--camera_num", None, f"cameras ({default.format(CAMERAS)})")
    arguments, cfg = cli.parse(parser)
    from demo_sdtps.evaluation.operations import operations_table
    from demo_sdtps.modeling import make_model
    from demo_sdtps.modeling.checkpoints.loading import read_checkpoint

    classes, cameras = CLASSES, CAMERAS
    if cfg.TEST.WEIGHT:
        checkpoint = read_checkpoint(cfg.TEST.WEIGHT)
        classes, cameras = checkpoint.num_class, checkpoint.camera_num
    classes, cameras = arguments.num_class or classes, arguments.camera_num or cameras
    height, width = cfg.INPUT.SIZE_TEST
    model = make_model(cfg, classes, cameras).eval()
    cli.print_lines(
        f"{cfg.MODEL.TRANSFORMER_TYPE}, one triplet of {height}×{width}, {classes} classes, {cameras} cameras",
        *operations_table(cfg, model),
    )
