"""Draw the features as points: demo-sdtps draw embedding --weight W --method tsne --output embedding.png"""

from demo_sdtps.commands import flags
from demo_sdtps.config import cli
from demo_sdtps.evaluation.embedding import METHODS, check_method, embed


def main() -> None:
    parser = flags.config_parser(
        "Draw the features of query and gallery as points of a plane, coloured by identity and by camera. "
        "SOLVER.SEED seeds the methods.",
        images=True,
    )
    cli.add_choice(parser, "--method", METHODS, "pca", "umap needs pip install '.[umap]'")
    flags.add_return_pattern(parser, "features that are drawn")
    cli.add_count(parser, "--points", 2000, "at most N samples, spread over query and gallery")
    cli.add_picture(parser, "embedding.png")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.datasets.loaders import test_loader
    from demo_sdtps.evaluation.command import load_any_model_and_data
    from demo_sdtps.evaluation.extraction import extract_features
    from demo_sdtps.evaluation.protocol import normalise
    from demo_sdtps.reports.embedding import draw_embedding
    from demo_sdtps.reports.figures import spread

    model, splits = load_any_model_and_data(cfg)
    samples = list(dict.fromkeys([*splits["query"], *splits["gallery"]]))
    chosen = [samples[index] for index in spread(len(samples), arguments.points)]
    check_method(arguments.method, len(chosen))
    (features,) = extract_features(cfg, model, test_loader(cfg, chosen))
    normalised = normalise(cfg, features[cfg.TEST.RETURN_PATTERN]).numpy()
    points = embed(normalised, arguments.method, cfg.SOLVER.SEED)
    cli.print_lines(draw_embedding(cfg, points, chosen, arguments.method, arguments.output))
