"""Train a model: python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml [KEY VALUE …]"""

from demo_sdtps.config import cli


def main() -> None:
    parser = cli.training_parser(
        "Train a model and evaluate it as it learns.",
        "Synthetic/DeMo_Slim --data data --epochs 2 OUTPUT_DIR runs/short",
    )
    with cli.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.modeling.demo import missing_modalities
        from demo_sdtps.runtime.distributed import check_launch
        from demo_sdtps.training.command import train
        from demo_sdtps.training.reid import make_reid_trainer

        check_launch(cfg)
        missing_modalities(cfg.TEST.MISS)  # refuses 'all', which is for test_net.py
        train(cfg, arguments.overwrite, make_reid_trainer)
