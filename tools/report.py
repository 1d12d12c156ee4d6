"""Pictures and a table of a finished run: python tools/report.py --config_file F [KEY VALUE …]"""
from pathlib import Path

from draw_curves import PICTURE, draw_curves, read_records
from draw_ranks import draw_ranks
from draw_tokens import draw_tokens

from config.cli import config_parser, parse, run
from engine.evaluate import as_table, make_test_data
from engine.load import load_model_and_data
from engine.train import LAST


def main() -> None:
    parser = config_parser("Draw a finished run's training curves, rank lists and kept tokens into its OUTPUT_DIR, and print "
                           "its table: mAP and Rank-1/5/10 of the last epoch beside the untrained model's mAP.")
    _, cfg = parse(parser)
    output = Path(cfg.OUTPUT_DIR)
    records = read_records(output)
    cfg.defrost()
    cfg.TEST.WEIGHT = str(output / LAST)
    cfg.freeze()
    model, splits = load_model_and_data(cfg)
    drawn = {"training curves": draw_curves(records, output / PICTURE),
             "rank lists": draw_ranks(cfg, model, make_test_data(cfg, splits["query"], splits["gallery"]),
                                      output / "ranks.png")}
    if model.sdtps:
        drawn["kept tokens"] = draw_tokens(cfg, model, splits["query"], output / "tokens.png")

    untrained = records[0]["patterns"] if records[0]["epoch"] == 0 else None
    print(f"\n{cfg.DATASETS.NAMES} in {cfg.DATASETS.ROOT_DIR}, {len(splits['query'])} queries, epoch {records[-1]['epoch']} "
          f"of {cfg.SOLVER.MAX_EPOCHS}, in percent")
    print(as_table(records[-1]["patterns"], untrained))
    print()
    for what, path in drawn.items():
        print(f"{what + ':':18}{path}")


if __name__ == "__main__":
    run(main)
