"""Search own images, and fit the probability of the same identity: demo-sdtps search, demo-sdtps calibrate"""

import argparse
import re
from unicodedata import normalize

from demo_sdtps.commands import cli, flags
from demo_sdtps.config import RETURN_PATTERNS, common
from demo_sdtps.datasets import SPLITS
from demo_sdtps.datasets.base import VALIDATION


def labels_pattern(text: str) -> re.Pattern:
    """Type of the flag --pattern: a regular expression with named groups."""
    try:
        pattern = re.compile(normalize("NFC", text))  # as names are
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression ({error})") from None
    if not pattern.groupindex:
        raise argparse.ArgumentTypeError(f"{text!r} has no named group such as (?P<camera>\\d+)")
    return pattern


def main() -> None:
    parser = flags.config_parser(
        "Find the images of a gallery that are most like each query. Without --output and --csv the hits of the first queries "
        "are printed. FOLDER has the subfolders RGB, NI and TI with images of equal names, nested too; any of them, or any "
        "image, may be missing. Images need no labels and no naming rule; where the camera is unknown the mean of the model's "
        "is taken. The features of the gallery are kept in an index; images that are new, changed or removed update it.",
        epilog=f"distance: {common.SQUARED}; with --re_rank the {common.RERANKED}.",
        data=False,
    )
    table = "or a TABLE.csv with the columns rgb, ni and ti, as in docs/own_data.md"
    cli.add_path(parser, "--gallery", "FOLDER", f"images to search in; {table}")
    flags.add_modality(parser)
    parser.add_argument(
        "--pattern",
        type=labels_pattern,
        metavar="REGEX",
        help="labels in the names, as named groups: 'cam(?P<camera>\\d+)' (default: those of a table alone)",
    )
    parser.add_argument(
        "--gallery_camera",
        metavar="NAME",
        help="camera of the gallery, as the training's files call it, such as 2, where pattern and table name none",
    )
    cli.add_count(parser, "--top", common.TOP, "hits per query, at most all")
    cli.add_switch(parser, "--skip_unreadable", "go on without unreadable images and list them")
    parser.add_argument(
        "--index",
        metavar="PLACE",
        help="the gallery's index, a folder or an address such as s3://bucket/photos (default: one below runs/search for each "
        "gallery, checkpoint and return pattern); one of others, or a damaged one, is replaced with --rebuild only",
    )
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        help='search only in the rows of the gallery that a condition in SQL leaves, such as "camera <> 2 AND present LIKE '
        "'%%TI%%'\"; a wrong one is answered with the columns there are",
    )
    cli.add_switch(parser, "--rebuild", "make the index anew, from all images of the gallery")
    cli.add_count(parser, "--re_rank", None, "re-rank the N nearest of each query (k-reciprocal)")
    patterns = "features: 1 original, 2 enhanced, 3 both"
    cli.add_choice(parser, "--return_pattern", RETURN_PATTERNS, 3, patterns)
    cli.add_path(
        parser,
        "--query",
        "PLACE",
        "a FOLDER like that of the gallery, or one image such as FOLDER/RGB/x.jpg, taken with its siblings in NI and TI",
    )
    camera = "camera of the queries, likewise (default: any other)"
    parser.add_argument("--camera", metavar="NAME", help=camera)
    cli.add_switch(parser, "--keep_self", "let a query that is in the gallery be a hit of itself")
    cli.add_output(parser, "--output", ".html", help="write the hits as a page for browsers")
    columns = (
        "write the columns query,rank,gallery,distance, with a calibration also probability; files are the first of "
        "their triplets"
    )
    cli.add_output(parser, "--csv", ".csv", help=columns)
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.reports.search_page import show
    from demo_sdtps.retrieval.search import search

    show(arguments, search(arguments, cfg))


def calibrate() -> None:
    parser = flags.config_parser(
        "Fit, for each pair of sets of modalities, the probability that two triplets are of one identity, and write it to "
        "NAME.calibration.json beside the checkpoint NAME.pth. Searches with the checkpoint then show the probability. The "
        "identities must be ones that the model was not trained on: by default those that DATASETS.VALIDATION left out of the "
        "training."
    )
    which = "of labelled images that the model was not trained on, by DATASETS.ROOT_DIR"
    cli.add_choice(parser, "--split", (VALIDATION, *SPLITS), VALIDATION, which)
    cli.add_overwrite(parser)
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.retrieval.calibration import calibrate

    calibrate(arguments, cfg)
