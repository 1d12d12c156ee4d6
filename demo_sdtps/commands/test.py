"""Evaluate a checkpoint: python test_net.py --weight runs/RGBNT201/DeMo_SDTPS/best.pth"""

from demo_sdtps.commands import cli, flags
from demo_sdtps.runtime.files import write_json


def main() -> None:
    parser = flags.config_parser(
        "Evaluate a checkpoint: mAP and Rank-1/5/10 of the original, the enhanced and both features. TEST.MISS all adds the "
        "six cases of missing modalities, TEST.RE_RANKING yes re-ranks.",
        "example: %(prog)s --weight runs/Synthetic/DeMo_SDTPS/best.pth",
    )
    matrices = "every set of modalities against every other, as matrices"
    flags.add_key(parser, "--cross_modal", "TEST.CROSS_MODAL", matrices)
    cli.add_output(parser, "--json", ".json", help="write the numbers there as well, in [0, 1]")
    with flags.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.evaluation import protocol, tables
        from demo_sdtps.runtime.distributed import is_main

        model, splits = protocol.load_model_and_data(cfg, exported=True)
        data = protocol.make_test_data(cfg, splits["query"], splits["gallery"])
        if cfg.TEST.CROSS_MODAL:
            by_modalities = protocol.evaluate_cross_modal(cfg, model, data)
            test = cfg.TEST
            about = {"return_pattern": test.RETURN_PATTERN, "distance": test.CROSS_MODAL_DISTANCE}
            content = {**about, "cross_modal": by_modalities}
            lines = tables.cross_modal_tables(cfg, by_modalities)
        else:
            rankings = protocol.evaluate_reid(cfg, model, data)
            cases = {case: tables.reid_record(patterns) for case, patterns in rankings.items()}
            is_all = cfg.TEST.MISS == "all"
            table = tables.missing_table(cases) if is_all else tables.reid_table(*cases.values())
            content, lines = {"cases": cases}, [table]
        if is_main():
            caption = tables.reid_caption(cfg, data)
            if arguments.json:
                write_json(arguments.json, {"caption": caption, **content})
            cli.print_lines(caption, *lines)
