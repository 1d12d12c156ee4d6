"""Evaluate a checkpoint: python test_net.py --weight runs/RGBNT201/DeMo_SDTPS/best.pth"""

from demo_sdtps.commands import flags
from demo_sdtps.config import cli
from demo_sdtps.runtime.files import write_json


def main() -> None:
    parser = flags.config_parser(
        "Evaluate a checkpoint: mAP and Rank-1/5/10 of the original, the enhanced and both features. TEST.MISS all adds the "
        "six cases of missing modalities, TEST.RE_RANKING yes re-ranks.",
        "example: %(prog)s --weight runs/Synthetic/DeMo_SDTPS/best.pth",
    )
    parser.add_argument(
        "--cross_modal",
        dest="TEST.CROSS_MODAL",
        action="store_const",
        const="True",
        help="every set of modalities against every other, as matrices (equivalent to the key TEST.CROSS_MODAL)",
    )
    cli.add_output(parser, "--json", ".json", help="write the numbers there as well, in [0, 1]")
    flags.add_skip_unreadable(parser)
    with flags.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.datasets.images import print_left_out
        from demo_sdtps.evaluation import tables
        from demo_sdtps.evaluation.distances import describe_incomparable, make_comparison
        from demo_sdtps.evaluation.extraction import load_any_model_and_data
        from demo_sdtps.evaluation.protocol import (
            evaluate_cross_modal,
            evaluate_reid,
            make_test_data,
        )
        from demo_sdtps.runtime.distributed import is_main

        model, splits = load_any_model_and_data(cfg)
        data = make_test_data(cfg, splits["query"], splits["gallery"])
        caption = tables.reid_caption(cfg, data)
        if cfg.TEST.CROSS_MODAL:
            matrices = evaluate_cross_modal(cfg, model, data)
            if is_main():
                if arguments.json:
                    how = {
                        "return_pattern": cfg.TEST.RETURN_PATTERN,
                        "distance": cfg.TEST.CROSS_MODAL_DISTANCE,
                    }
                    write_json(arguments.json, {"caption": caption, **how, "cross_modal": matrices})
                cli.print_lines(caption, *tables.cross_modal_tables(cfg, matrices))
            print_left_out()
            return
        rankings = evaluate_reid(cfg, model, data)
        cases = {case: tables.reid_record(patterns) for case, patterns in rankings.items()}
        if not is_main():
            return
        if arguments.json:
            write_json(arguments.json, {"caption": caption, "cases": cases})
        is_all = cfg.TEST.MISS == "all"
        table = tables.missing_table(cases) if is_all else tables.reid_table(cases[cfg.TEST.MISS])
        cli.print_lines(caption, table)
        query, gallery = (data.present[rows] for rows in (data.query, data.gallery))
        if text := describe_incomparable(make_comparison(cfg, 1), query, gallery):
            cli.print_lines(f"WARNING: {text}, otherwise their matches rank last.")
        print_left_out()
