"""Rewrite a checkpoint in DeMo's names, in ours, or as a backbone: demo-sdtps convert DeMo.pth ours.pth --to ours"""

import argparse
from pathlib import Path

from demo_sdtps.commands import cli

NAMINGS = {"demo": "DeMo's", "ours": "our"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Convert a checkpoint between the names of DeMo and of this project, or take out its backbone; tensors "
        "stay bit-identical. demo-sdtps test reads both.",
        epilog="To DeMo: a bare state dict, as DeMo saves it. To ours: with the numbers of identities and cameras beside it, "
        "no epoch, configuration or optimiser. To backbone: the Vision Transformer in timm's names, for MODEL.PRETRAIN_PATH_T.",
    )
    parser.add_argument("input", type=Path, metavar="IN", help="checkpoint to read")
    cli.add_output(parser, "output", ".pth", metavar="OUT.pth", help="checkpoint to write")
    parser.add_argument("--to", choices=(*NAMINGS, "backbone"), required=True, help="what to write")
    arguments = cli.read_arguments(parser)
    from demo_sdtps.modeling.checkpoints.loading import read_checkpoint, save_whole
    from demo_sdtps.modeling.checkpoints.names import backbone_weights, to_demo

    output, content = arguments.output, read_checkpoint(arguments.input)
    if arguments.to == "backbone":
        weights = backbone_weights(content.model)
        save_whole(weights, output)
        cli.print_lines(
            f"Wrote {len(weights)} tensors of the backbone, to start from with MODEL.PRETRAIN_PATH_T {output}"
        )
        return
    is_demo = arguments.to == "demo"
    weights = to_demo(content.model) if is_demo else content.model
    about = {"num_class": content.num_class, "camera_num": content.camera_num}
    save_whole(weights if is_demo else {"model": weights, **about}, output)
    cli.print_lines(
        f"Wrote {len(weights)} tensors under {NAMINGS[arguments.to]} names to {output}: {content.num_class} identities, "
        f"{content.camera_num} cameras"
    )
