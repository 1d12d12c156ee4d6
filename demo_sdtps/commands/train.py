"""Train a model: python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml [KEY VALUE …]"""

from demo_sdtps.commands import flags


def main() -> None:
    parser = flags.training_parser(
        "Train a model and evaluate it as it learns.",
        "Synthetic/DeMo_Slim --data data --epochs 2 OUTPUT_DIR runs/short",
    )
    with flags.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.training.reid import train

        train(cfg, arguments.overwrite)
