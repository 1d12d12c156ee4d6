"""Figures of a model or a run: demo-sdtps draw tokens|ranks|embedding --weight W, draw curves --run runs/demo"""

import argparse

from demo_sdtps.commands import flags
from demo_sdtps.config import cli, load_cfg, with_values
from demo_sdtps.config.common import EMBEDDING_METHODS


def tokens() -> None:
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
    from demo_sdtps.evaluation.extraction import load_model_and_data
    from demo_sdtps.modeling.checkpoints.loading import stored_config
    from demo_sdtps.reports.tokens import check_selection, draw_tokens

    data = {key: value for key, value in flatten(cfg).items() if key.startswith("DATASETS.")}
    cfgs = [cfg]
    for weight in (vars(arguments)["TEST.WEIGHT"] or [])[1:]:
        stored = load_cfg(stored_config(weight), [*arguments.opts, "TEST.WEIGHT", str(weight)])
        cfgs.append(with_values(stored, data))
    for model_cfg in cfgs:
        check_selection(model_cfg)
    loaded = [load_model_and_data(model_cfg, ("query",)) for model_cfg in cfgs]
    models = [(model_cfg, model) for model_cfg, (model, _) in zip(cfgs, loaded, strict=True)]
    cli.print_lines(draw_tokens(models, loaded[0][1]["query"], arguments.output, arguments.samples))


def ranks() -> None:
    parser = flags.config_parser(
        "Draw queries and their best ten gallery triplets in all modalities, with their distances; hits have a ✓ and a green "
        "frame, misses a ✗ and an orange one. Needs labels of identities: for images without, demo-sdtps search writes a page."
    )
    flags.add_return_pattern(parser, "features that are ranked")
    cli.add_picture(parser, "ranks.png")
    cli.add_count(parser, "--queries", 4, "queries, spread over the split")
    cli.add_switch(parser, "--failures", "only queries without a hit at rank 1, the worst first")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.extraction import extract_features, load_any_model_and_data
    from demo_sdtps.evaluation.protocol import make_test_data
    from demo_sdtps.reports.evaluation import draw_ranks, failures
    from demo_sdtps.reports.figures import spread

    model, splits = load_any_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    (patterns,) = extract_features(cfg, model, data.loader)
    features = patterns[cfg.TEST.RETURN_PATTERN]
    # Spread over the split, which is ordered by identity, for different people and cameras.
    shown = spread(len(data.query), arguments.queries)
    if arguments.failures:
        shown = failures(cfg, features, data)[: arguments.queries]
    cli.print_lines(draw_ranks(cfg, features, data, arguments.output, shown))


def embedding() -> None:
    parser = flags.config_parser(
        "Draw the features of query and gallery as points of a plane, coloured by identity and by camera. "
        "SOLVER.SEED seeds the methods.",
        images=True,
    )
    cli.add_choice(parser, "--method", EMBEDDING_METHODS, "pca")
    flags.add_return_pattern(parser, "features that are drawn")
    cli.add_count(parser, "--points", 2000, "at most N samples, spread over query and gallery")
    cli.add_picture(parser, "embedding.png")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.datasets.loaders import test_loader
    from demo_sdtps.evaluation.analysis import check_points, embed
    from demo_sdtps.evaluation.extraction import extract_features, load_any_model_and_data
    from demo_sdtps.evaluation.protocol import normalise
    from demo_sdtps.reports.evaluation import draw_embedding
    from demo_sdtps.reports.figures import spread

    model, splits = load_any_model_and_data(cfg)
    samples = list(dict.fromkeys([*splits["query"], *splits["gallery"]]))
    chosen = [samples[index] for index in spread(len(samples), arguments.points)]
    check_points(len(chosen))
    (features,) = extract_features(cfg, model, test_loader(cfg, chosen))
    normalised = normalise(cfg, features[cfg.TEST.RETURN_PATTERN]).numpy()
    points = embed(normalised, arguments.method, cfg.SOLVER.SEED)
    cli.print_lines(draw_embedding(cfg, points, chosen, arguments.method, arguments.output))


def curves() -> None:
    description = "Draw loss, accuracy, mAP and Rank-1 over the epochs of a run."
    parser = argparse.ArgumentParser(description=description)
    cli.add_path(parser, "--run", "DIR", "OUTPUT_DIR of a training")
    cli.add_output(parser, "--output", *cli.PICTURE, help="default: DIR/curves.png")
    arguments = cli.read_arguments(parser)
    from demo_sdtps.reports.evaluation import IMAGE, draw_curves, evaluated_run

    arguments.output = arguments.output or arguments.run / IMAGE
    cli.check_outputs(arguments)
    cli.print_lines(draw_curves(evaluated_run(arguments.run), arguments.output))
