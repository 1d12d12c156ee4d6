"""python -m seps train shapes --data data, python -m seps test --weight W, python -m seps check shapes --data data"""

import os
import sys
from pathlib import Path

from demo_sdtps.commands import check_data, flags
from demo_sdtps.config import cli
from demo_sdtps.runtime.errors import UserError, nearest_name
from demo_sdtps.runtime.files import write_json
from seps.schema import SEPS_SCHEMA


def main() -> None:
    """Call the command that the first word names."""
    commands = {"train": train, "test": test, "check": check}
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        names = ", ".join(commands)
        return cli.print_lines(
            f"usage: python -m seps COMMAND …; the commands are {names}, and COMMAND --help explains each"
        )
    if name not in commands:
        raise UserError(
            f"There is no command {name!r}{nearest_name(name, commands)}; python -m seps --help lists all."
        )
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("SEPS runs in one process, on one GPU; start it without torchrun.")
    sys.argv = [f"python -m seps {name}", *sys.argv[2:]]
    commands[name]()


def train() -> None:
    parser = flags.training_parser(
        "Train SEPS on images with captions and evaluate it as it learns.",
        "shapes --data data --epochs 10",
        SEPS_SCHEMA,
    )
    arguments, cfg = flags.parse(parser)
    from seps import training

    training.train(cfg, arguments.overwrite)


def test() -> None:
    parser = flags.config_parser(
        "Evaluate a checkpoint of SEPS: R@1, R@5 and R@10 of captions found by an image (i2t) and of "
        "images found by a caption (t2i), and their sum. TEST.FOLDS 5 gives COCO's 1K figures.",
        "example: %(prog)s --weight runs/SEPS/shapes/best.pth",
        SEPS_SCHEMA,
    )
    cli.add_output(parser, "--json", ".json", help="write the numbers there as well, in percent")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.tables import percent_table
    from seps import evaluation

    model, data = evaluation.load_seps_and_data(cfg)
    metrics = {cfg.TEST.SPLIT: evaluation.evaluate_retrieval(model, data)}
    images, captions = int(data.image_of.max()) + 1, len(data.image_of)
    caption = f"{cfg.DATASETS.NAMES}, {cfg.TEST.SPLIT}: {images} images, {captions} captions"
    if data.folds > 1:
        caption += f", in {data.folds} parts of {images // data.folds} images"
    if arguments.json:
        write_json(arguments.json, {"caption": caption, **metrics})
    cli.print_lines(caption, percent_table(metrics, scale=1))


def check() -> None:
    arguments, cfg = check_data.parse(SEPS_SCHEMA)
    from seps.evaluation import check_captions

    folder = Path(cfg.DATASETS.ROOT_DIR) / cfg.DATASETS.NAMES
    check_data.report_findings(arguments, cfg, check_captions(cfg, arguments.decode), folder)


if __name__ == "__main__":
    cli.run(main)
