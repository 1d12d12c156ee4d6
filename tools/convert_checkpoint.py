"""Convert a checkpoint between DeMo's names and ours, or take out its backbone for other runs to start from:
python tools/convert_checkpoint.py DeMo.pth ours.pth --to ours
"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse

from demo_sdtps.config.cli import add_output, read_arguments, run


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Convert a checkpoint between the names of DeMo and of this project, or take out its backbone; tensors "
                    "stay bit-identical. test_net.py reads both.",
        epilog="To DeMo: a bare state dict, as DeMo saves it. To ours: with the numbers of identities and cameras beside it. "
               "The output contains only weights, without epoch, configuration and optimiser. To backbone: the "
               "Vision Transformer alone in timm's names, for MODEL.PRETRAIN_PATH_T.")
    parser.add_argument("input", type=Path, metavar="IN", help="checkpoint to read")
    add_output(parser, "output", ".pth", metavar="OUT", help="checkpoint to write, ending in .pth")
    parser.add_argument("--to", choices=("demo", "ours", "backbone"), required=True,
                        help="whose names OUT will have, or backbone")
    arguments = read_arguments(parser)

    from demo_sdtps.modeling.conversion import convert

    convert(arguments.input, arguments.output, arguments.to)


if __name__ == "__main__":
    run(main)
