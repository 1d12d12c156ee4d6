"""Train SEPS, image-text matching: python train_seps.py --config_file configs/SEPS/flickr30k.yml [KEY VALUE …]"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import demo_sdtps.script  # noqa: F401

from demo_sdtps.config.cli import parsed_in_group, run, training_parser
from demo_sdtps.seps.schema import SEPS_SCHEMA


def main() -> None:
    parser = training_parser("Train SEPS on images with captions and evaluate it as it learns.",
                             "python train_seps.py --config_file configs/SEPS/shapes.yml SOLVER.MAX_EPOCHS 10", SEPS_SCHEMA)
    with parsed_in_group(parser) as (arguments, cfg):
        from demo_sdtps.runtime.distributed import check_divisible
        from demo_sdtps.seps.training import make_seps_trainer
        from demo_sdtps.training.command import train

        check_divisible(cfg, cfg.SOLVER.IMS_PER_BATCH, "captions")
        train(cfg, arguments.overwrite, make_seps_trainer, SEPS_SCHEMA)


if __name__ == "__main__":
    run(main)
