"""Train a model: python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml [KEY VALUE …]"""

from demo_sdtps.config import cli


def main() -> None:
    parser = cli.training_parser(
        "Train a model and evaluate it as it learns.",
        "python train_net.py --config_file configs/Synthetic/DeMo_SDTPS.yml SOLVER.MAX_EPOCHS 10",
        checkpoint=cli.WEIGHT._replace(gives="a checkpoint to start from"),
    )
    with cli.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.training.reid import train

        train(cfg, arguments.overwrite)
