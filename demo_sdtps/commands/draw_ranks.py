"""Draw rank lists: demo-sdtps draw ranks --weight W --output ranks.png"""

from demo_sdtps.commands import flags
from demo_sdtps.config import cli


def main() -> None:
    parser = flags.config_parser(
        "Draw queries and their best ten gallery triplets in all modalities, with their distances; hits have a ✓ and a green "
        "frame, misses a ✗ and an orange one. Needs labels of identities: for images without, demo-sdtps search writes a page.",
    )
    flags.add_return_pattern(parser, "features that are ranked")
    cli.add_picture(parser, "ranks.png")
    cli.add_count(parser, "--queries", 4, "queries, spread over the split")
    cli.add_switch(parser, "--failures", "only queries without a hit at rank 1, the worst first")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.command import load_any_model_and_data
    from demo_sdtps.evaluation.extraction import extract_features
    from demo_sdtps.evaluation.protocol import make_test_data
    from demo_sdtps.reports.figures import spread
    from demo_sdtps.reports.ranks import draw_ranks, failures

    model, splits = load_any_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    (patterns,) = extract_features(cfg, model, data.loader)
    features = patterns[cfg.TEST.RETURN_PATTERN]
    # Spread over the split, which is ordered by identity, for different people and cameras.
    shown = (
        failures(cfg, features, data)[: arguments.queries]
        if arguments.failures
        else spread(len(data.query), arguments.queries)
    )
    cli.print_lines(draw_ranks(cfg, features, data, arguments.output, shown))
