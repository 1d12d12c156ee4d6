"""Train SEPS, image-text matching: python train_seps.py --config_file configs/SEPS/flickr30k.yml [KEY VALUE …]"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import demo_sdtps.script  # noqa: F401

from demo_sdtps.config.cli import parse, run
from demo_sdtps.runtime.distributed import broadcast_from_main, check_divisible, init_distributed
from demo_sdtps.seps.schema import SEPS_SCHEMA
from demo_sdtps.seps.training import make_seps_trainer
from demo_sdtps.training.command import train, training_parser


def main() -> None:
    parser = training_parser("Train SEPS on images with captions and evaluate it as it learns.",
                             "python train_seps.py --config_file configs/SEPS/shapes.yml SOLVER.MAX_EPOCHS 10", SEPS_SCHEMA)
    with init_distributed():
        arguments, own = parse(parser)
        cfg = broadcast_from_main(lambda: own)
        check_divisible(cfg, cfg.SOLVER.IMS_PER_BATCH, "captions")
        train(cfg, arguments.overwrite, make_seps_trainer, SEPS_SCHEMA)


if __name__ == "__main__":
    run(main)
