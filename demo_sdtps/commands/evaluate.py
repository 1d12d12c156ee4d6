"""Commands that inspect a trained model or a run: analyse, report, draw …, slim-curve and flops."""

import argparse

from demo_sdtps.commands import cli, flags
from demo_sdtps.config.common import EMBEDDING_METHODS
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import write_json

CLASSES, CAMERAS = 171, 4  # RGBNT201's


def analyse() -> None:
    parser = flags.config_parser(
        "Write the numbers behind an evaluation: mAP and Rank-1/5/10 by missing modalities, and of any modalities "
        "against any, average precision of every query, rank lists, the worst queries, and the features in two dimensions "
        "(PCA, t-SNE). docs/getting_started.md describes the file."
    )
    flags.add_return_pattern(parser, "features that are analysed")
    cli.add_output(parser, "--json", ".json", required=True, help="write the numbers to this file")
    add_limits(parser)
    arguments, cfg = flags.parse(parser)
    check_extra("demo-sdtps analyse", "report", {"sklearn": "scikit-learn"})
    from demo_sdtps.evaluation.protocol import load_model_and_data, make_test_data
    from demo_sdtps.evaluation.tables import missing_table, reid_caption
    from demo_sdtps.reports.run_report import analyse

    model, splits = load_model_and_data(cfg, exported=True)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    content, caption = analyse(cfg, model, data, arguments), reid_caption(cfg, data)
    write_json(arguments.json, {"caption": caption, **content})
    cli.print_lines(caption, missing_table(content["cases"]), arguments.json)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the flags that bound the size of a file."""
    cli.add_count(parser, "--queries", 500, "rank lists: the worst, and a spread of others")
    cli.add_count(parser, "--points", 1000, "samples in the scatter plots")


def report() -> None:
    parser = flags.config_parser(
        "Evaluate the last checkpoint of a finished run, and print its table: mAP and Rank-1/5/10 beside the untrained model's "
        "mAP. Several --run are each evaluated on their own data, and printed below each other. --html writes a page with "
        "training curves, rank lists to filter, kept patches and more (docs/getting_started.md).",
        weight="",
    )
    run = "the OUTPUT_DIR of a training"
    flags.add_stored(parser, "--run", "DIR", run, "OUTPUT_DIR", "last.pth")
    cli.add_output(parser, "--html", ".html", help="write a page for browsers to this file")
    add_limits(parser)
    cli.add_count(parser, "--thumbnails", 1200, "triplets whose images the page has, 7 kB each")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.reports.run_report import report_runs

    report_runs(arguments, cfg)


def draw_tokens() -> None:
    parser = flags.config_parser(
        "Draw triplets, and beside them the patches that every stage of token pruning and SDTPS keep; the others are covered.",
        images=True,
    )
    cli.add_picture(parser, "tokens.png")
    cli.add_count(parser, "--samples", 8, "triplets, spread over the split")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.protocol import load_model_and_data
    from demo_sdtps.reports.figures import check_selection, draw_tokens, spread

    check_selection(cfg)
    model, splits = load_model_and_data(cfg, ("query",))
    samples = splits["query"]
    shown = [samples[index] for index in spread(len(samples), arguments.samples)]
    cli.print_lines(draw_tokens(cfg, model, shown, arguments.output))


def draw_ranks() -> None:
    parser = flags.config_parser(
        "Draw queries and their best ten gallery triplets in all modalities, with their distances; hits have a ✓ and a green "
        "frame, misses a ✗ and an orange one. Needs labels of identities: for images without, demo-sdtps search writes a page."
    )
    flags.add_return_pattern(parser, "features that are ranked")
    cli.add_picture(parser, "ranks.png")
    cli.add_count(parser, "--queries", 4, "queries, spread over the split")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.protocol import extract_features, load_model_and_data, make_test_data
    from demo_sdtps.reports.figures import draw_ranks, spread

    model, splits = load_model_and_data(cfg, exported=True)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    (patterns,) = extract_features(cfg, model, data.loader)
    features = patterns[cfg.TEST.RETURN_PATTERN]
    # Spread over the split, which is ordered by identity, for different people and cameras.
    shown = spread(len(data.query), arguments.queries)
    cli.print_lines(draw_ranks(cfg, features, data, arguments.output, shown))


def draw_embedding() -> None:
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
    check_extra("demo-sdtps draw embedding", "report", {"sklearn": "scikit-learn"})
    from demo_sdtps.datasets.loaders import test_loader
    from demo_sdtps.evaluation.protocol import extract_features, load_model_and_data
    from demo_sdtps.reports.figures import draw_embedding, spread

    model, splits = load_model_and_data(cfg, exported=True)
    samples = list(dict.fromkeys([*splits["query"], *splits["gallery"]]))
    chosen = [samples[index] for index in spread(len(samples), arguments.points)]
    (patterns,) = extract_features(cfg, model, test_loader(cfg, chosen))
    features, method = patterns[cfg.TEST.RETURN_PATTERN], arguments.method
    cli.print_lines(draw_embedding(cfg, features, chosen, method, arguments.output))


def draw_curves() -> None:
    parser = argparse.ArgumentParser(description="Draw loss, accuracy and mAP of a run's epochs.")
    cli.add_path(parser, "--run", "DIR", "OUTPUT_DIR of a training")
    cli.add_picture(parser, "curves.png")
    arguments = cli.read_arguments(parser)
    from demo_sdtps.reports.figures import draw_curves
    from demo_sdtps.reports.run_report import evaluated_run

    cli.print_lines(draw_curves(evaluated_run(arguments.run), arguments.output))


def slim_curve() -> None:
    parser = flags.config_parser(
        "Evaluate a checkpoint with token pruning in the backbone (MODEL.SLIM_BLOCKS) that it was not trained with: for each "
        "score and setting the operations of the backbone against the dense model, and mAP and Rank-1 of TEST.RETURN_PATTERN."
    )
    scores = "MODEL.SLIM_SCORE of each curve (default: saliency)"
    parser.add_argument("--scores", nargs="+", default=["saliency"], metavar="SCORE", help=scores)
    parser.add_argument(
        "--blocks",
        nargs="+",
        type=whole_numbers,
        metavar="B,B",
        help="MODEL.SLIM_BLOCKS of each setting, such as 2 1,3 (default: after a third, after a sixth and a half, before the "
        "first and after a third)",
    )
    parser.add_argument(
        "--keep",
        nargs="+",
        type=share,
        default=[0.65, 0.5],
        metavar="SHARE",
        help="share of the patches that each block of a setting keeps; every setting of --blocks with every share (default: "
        "0.65 and 0.5)",
    )
    cli.add_output(parser, "--output", *cli.PICTURE, help="draw the curve into this file")
    cli.add_output(parser, "--json", ".json", help="write it, in [0, 1], to this file")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.reports.slim_curve import evaluate_settings

    evaluate_settings(cfg, arguments)


def whole_numbers(text: str) -> list[int]:
    """Type of a flag for argparse: whole numbers that rise, such as 1,3."""
    numbers = [int(word) for word in text.split(",")]
    if numbers != sorted(set(numbers)) or numbers[0] < 0:
        raise argparse.ArgumentTypeError(f"{text} must rise, each block once")
    return numbers


def share(text: str) -> float:
    """Type of a flag for argparse: a number in (0, 1]."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in (0, 1]")
    return value


def flops() -> None:
    parser = flags.config_parser("Print the trainable parameters and GMACs of a triplet, by part.")
    without = "default: the checkpoint's, without one"
    cli.add_count(parser, "--num_class", None, f"training identities ({without} {CLASSES})")
    cli.add_count(parser, "--camera_num", None, f"cameras ({without} {CAMERAS})")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.evaluation.operations import operations_table
    from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
    from demo_sdtps.modeling.demo import make_model

    classes, cameras, checkpoint = CLASSES, CAMERAS, None
    if cfg.TEST.WEIGHT:
        checkpoint = read_checkpoint(cfg.TEST.WEIGHT)
        classes, cameras = checkpoint.num_class, checkpoint.camera_num
    classes, cameras = arguments.num_class or classes, arguments.camera_num or cameras
    size, model = "×".join(map(str, cfg.INPUT.SIZE_TEST)), make_model(cfg, classes, cameras).eval()
    if checkpoint:
        load_weights(model, checkpoint)  # refuses a configuration or numbers that are not its own
    cli.print_lines(
        f"{cfg.MODEL.TRANSFORMER_TYPE}, one triplet of {size}, {classes} classes, {cameras} cameras",
        *operations_table(cfg, model),
    )
