"""Train SEPS, image-text matching: python train_seps.py --config_file configs/SEPS/flickr30k.yml [KEY VALUE …]"""

from demo_sdtps.config import cli
from demo_sdtps.seps.schema import SEPS_SCHEMA


def main() -> None:
    parser = cli.training_parser(
        "Train SEPS on images with captions and evaluate it as it learns.",
        "shapes --data data --epochs 10",
        SEPS_SCHEMA,
    )
    with cli.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.runtime.distributed import check_divisible
        from demo_sdtps.seps.training import make_seps_trainer
        from demo_sdtps.training.command import train

        check_divisible(cfg, cfg.SOLVER.IMS_PER_BATCH, "captions")
        train(cfg, arguments.overwrite, make_seps_trainer, SEPS_SCHEMA)
