"""Parameters and multiply-accumulates of a model: demo-sdtps flops --config_file F, or --weight W

The cost of HDM's reference formulation, in which published figures count, is printed beside that of the shortcut in use, and
of a slimmed model its share of the dense one's.
"""

from demo_sdtps.commands import flags
from demo_sdtps.config import cli

CLASSES, CAMERAS = 171, 4  # RGBNT201's


def main() -> None:
    description = "Print the trainable parameters and GMACs of one triplet, per part and in total."
    parser = flags.config_parser(description)
    of_weights = "default: as in the checkpoint, without one"
    cli.add_count(parser, "--num_class", None, f"training identities ({of_weights} {CLASSES})")
    cli.add_count(parser, "--camera_num", None, f"cameras ({of_weights} {CAMERAS})")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.operations import operations_table
    from demo_sdtps.modeling import make_model
    from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint

    checkpoint = read_checkpoint(cfg.TEST.WEIGHT) if cfg.TEST.WEIGHT else None
    classes, cameras = CLASSES, CAMERAS
    if checkpoint:
        classes, cameras = checkpoint.num_class, checkpoint.camera_num
    classes, cameras = arguments.num_class or classes, arguments.camera_num or cameras
    height, width = cfg.INPUT.SIZE_TEST
    model = make_model(cfg, classes, cameras).eval()
    if checkpoint:
        load_weights(model, checkpoint)  # refuses a configuration or numbers that are not its own
    cli.print_lines(
        f"{cfg.MODEL.TRANSFORMER_TYPE}, one triplet of {height}×{width}, {classes} classes, {cameras} cameras",
        *operations_table(cfg, model),
    )
