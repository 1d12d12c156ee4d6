"""Train a model: python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml [KEY VALUE …]"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import demo_sdtps.script  # noqa: F401

from demo_sdtps.config.cli import parse, run
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.runtime.distributed import broadcast_from_main, check_launch, init_distributed
from demo_sdtps.training.command import train, training_parser
from demo_sdtps.training.reid import make_reid_trainer


def main() -> None:
    parser = training_parser("Train a model and evaluate it as it learns.",
                             "python train_net.py --config_file configs/Synthetic/DeMo_SDTPS.yml SOLVER.MAX_EPOCHS 10")
    with init_distributed():
        arguments, own = parse(parser)
        cfg = broadcast_from_main(lambda: own)
        check_launch(cfg)
        missing_modalities(cfg.TEST.MISS)  # refuses 'all', which is for test_net.py
        train(cfg, arguments.overwrite, make_reid_trainer)


if __name__ == "__main__":
    run(main)
