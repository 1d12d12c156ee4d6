"""Evaluate a checkpoint: python test_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml TEST.WEIGHT best.pth"""
from config import with_values
from config.cli import config_parser, parse, run
from engine.evaluate import as_missing_table, as_record, as_table, caption, evaluate, evaluate_missing, make_test_data
from engine.load import load_model_and_data


def main() -> None:
    parser = config_parser("Evaluate a checkpoint: mAP and Rank-1/5/10 of the original, the enhanced and both features. "
                           "TEST.MISS all adds the six cases of missing modalities, TEST.RE_RANKING yes re-ranks.",
                           "example: python test_net.py --config_file configs/Synthetic/DeMo_SDTPS.yml "
                           "TEST.WEIGHT runs/Synthetic/DeMo_SDTPS/best.pth")
    _, cfg = parse(parser, weight=True)
    all_cases = cfg.TEST.MISS == "all"
    if all_cases:
        cfg = with_values(cfg, {"TEST.MISS": "nothing"})
    model, splits = load_model_and_data(cfg)
    test_data = make_test_data(cfg, splits["query"], splits["gallery"])
    if all_cases:
        by_case = evaluate_missing(cfg, model, test_data)
        table = as_missing_table({case: as_record(rankings) for case, rankings in by_case.items()})
    else:
        table = as_table(as_record(evaluate(cfg, model, test_data)))
    print(caption(cfg, test_data), table, sep="\n")


if __name__ == "__main__":
    run(main)
