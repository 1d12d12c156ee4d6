"""python -m seps train shapes --data data, python -m seps test --weight W, python -m seps check shapes --data data"""

import sys
from argparse import ArgumentParser
from pathlib import Path

from demo_sdtps.commands import check_data, cli, flags
from demo_sdtps.runtime.files import write_json
from seps.schema import SEPS_SCHEMA


def main() -> None:
    """Call the command that the first word names."""
    commands = {"train": train, "test": test, "check": check}
    parser = ArgumentParser(prog="python -m seps", description=__doc__)
    parser.add_argument("command", choices=commands, help="COMMAND --help explains it")
    name = parser.parse_args(sys.argv[1:2]).command
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
    from seps import training

    model, data = training.load_seps_and_data(cfg)
    metrics = {cfg.TEST.SPLIT: training.evaluate_retrieval(model, data)}
    images, captions = len(data.split.paths), len(data.split.captions)
    data_text = f"{cfg.DATASETS.NAMES}, {cfg.TEST.SPLIT}: {images} images, {captions} captions"
    caption = f"{data_text}, TEST.FOLDS {data.folds}"
    if arguments.json:
        write_json(arguments.json, {"caption": caption, **metrics})
    cli.print_lines(caption, percent_table(metrics, scale=1))


def check() -> None:
    arguments, cfg = check_data.parse(SEPS_SCHEMA)
    from demo_sdtps.datasets.images import verify
    from demo_sdtps.datasets.samplers import ShuffledBatchSampler
    from seps.captions import read_caption_splits

    splits = read_caption_splits(cfg)
    # as training does
    ShuffledBatchSampler(
        len(splits["train"].captions), "captions", cfg.SOLVER.IMS_PER_BATCH, seed=0
    )
    if arguments.decode:
        verify(path for split in splits.values() for path in split.paths)
    counts = {
        name: {
            "images": len(split.paths),
            "captions": len(split.captions),
            "long": len(split.long_captions or ()),
        }
        for name, split in splits.items()
    }
    findings = {"counts": counts, "expected": {}, "differences": [], "warnings": []}
    folder = Path(cfg.DATASETS.ROOT_DIR) / cfg.DATASETS.NAMES
    check_data.report_findings(arguments, cfg, findings, folder)


if __name__ == "__main__":
    cli.run(main)
