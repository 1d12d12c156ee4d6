"""Draw which patches slimming and SDTPS keep: demo-sdtps draw tokens --weight W --output tokens.png"""

from demo_sdtps.commands import flags
from demo_sdtps.config import cli, load_cfg, with_values


def main() -> None:
    parser = flags.config_parser(
        "Draw triplets, and beside them the patches that every stage of slimming and SDTPS keep; the others are covered. "
        "Several --weight, each with its configuration, are drawn beside each other, by their last stages.",
        several=True,
        images=True,
    )
    cli.add_picture(parser, "tokens.png")
    cli.add_count(parser, "--samples", 8, "triplets, spread over the split")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.config.load import flatten
    from demo_sdtps.evaluation.command import load_model_and_data
    from demo_sdtps.evaluation.selection import check_selection
    from demo_sdtps.modeling.checkpoints.loading import stored_config
    from demo_sdtps.reports.tokens import draw_tokens

    others = (vars(arguments)["TEST.WEIGHT"] or [])[1:]
    data = {key: value for key, value in flatten(cfg).items() if key.startswith("DATASETS.")}
    cfgs = [cfg]
    for weight in others:
        stored = load_cfg(stored_config(weight), [*arguments.opts, "TEST.WEIGHT", str(weight)])
        cfgs.append(with_values(stored, data))
    for model_cfg in cfgs:
        check_selection(model_cfg)
    loaded = [load_model_and_data(model_cfg, ("query",)) for model_cfg in cfgs]
    models = [(model_cfg, model) for model_cfg, (model, _) in zip(cfgs, loaded, strict=True)]
    cli.print_lines(draw_tokens(models, loaded[0][1]["query"], arguments.output, arguments.samples))
