"""Evaluate a checkpoint: python test_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml TEST.WEIGHT best.pth"""
from config.cli import config_parser, parse, run
from engine.evaluate import as_record, as_table, evaluate, make_test_data
from engine.load import load_model_and_data


def main() -> None:
    parser = config_parser("Evaluate a checkpoint: mAP and Rank-1/5/10 of the original, the enhanced and both features.",
                           "example: python test_net.py --config_file configs/Synthetic/DeMo_SDTPS.yml "
                           "TEST.WEIGHT runs/Synthetic/DeMo_SDTPS/best.pth")
    _, cfg = parse(parser, weight=True)
    model, splits = load_model_and_data(cfg)
    test_data = make_test_data(cfg, splits["query"], splits["gallery"])
    print(as_table(as_record(evaluate(cfg, model, test_data))))


if __name__ == "__main__":
    run(main)
