"""SEPS, image-text matching: demo-sdtps seps train shapes --data data, seps test --weight W, seps check shapes"""

from pathlib import Path

from demo_sdtps.commands import check_data, flags
from demo_sdtps.config import cli
from demo_sdtps.runtime.files import write_json
from seps.schema import SEPS_SCHEMA


def train() -> None:
    parser = flags.training_parser(
        "Train SEPS on images with captions and evaluate it as it learns.",
        "shapes --data data --epochs 10",
        SEPS_SCHEMA,
    )
    with flags.parse_in_group(parser) as (arguments, cfg):
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
    with flags.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.evaluation.tables import percent_table
        from demo_sdtps.runtime.distributed import is_main
        from seps import evaluation

        model, data = evaluation.load_seps_and_data(cfg)
        metrics = {cfg.TEST.SPLIT: evaluation.evaluate_retrieval(model, data)}
        caption = evaluation.retrieval_caption(cfg, data)
        if not is_main():
            return
        if arguments.json:
            write_json(arguments.json, {"caption": caption, **metrics})
        cli.print_lines(caption, percent_table(metrics, scale=1))


def check() -> None:
    arguments, cfg = check_data.parse(SEPS_SCHEMA)
    from seps.evaluation import check_captions

    folder = Path(cfg.DATASETS.ROOT_DIR) / cfg.DATASETS.NAMES
    check_data.report_findings(arguments, cfg, check_captions(cfg, arguments.decode), folder)
