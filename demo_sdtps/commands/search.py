"""Search own images: python tools/search.py --weight W --gallery FOLDER --query FOLDER_OR_FILE --output hits.html"""

import argparse
from pathlib import Path

from demo_sdtps.config import RETURN_PATTERNS, cli
from demo_sdtps.config.common import APPROXIMATE, FLAT, RERANKED, SQUARED, TOP


def search_parser(what: str) -> argparse.ArgumentParser:
    """Parser of a command that searches in a gallery; `what` begins its description."""
    parser = cli.config_parser(
        f"{what} FOLDER has the subfolders RGB, NI and TI with images of equal names, nested too; any of them, or any "
        "image, may be missing. Images need no labels and no naming rule; cameras are unknown, so the mean of the model's is "
        "taken. The features of the gallery are kept in an index; images that are new, changed or removed update it.",
        epilog=f"distance: {SQUARED}; with --re_rank, or TEST.RE_RANKING yes, the {RERANKED}.",
        checkpoint=cli.WEIGHT,
    )
    parser.add_argument(
        "--gallery", type=Path, required=True, metavar="FOLDER", help="images to search in"
    )
    cli.add_modality(parser)
    parser.add_argument(
        "--top",
        type=cli.positive_int,
        metavar="N",
        help=f"hits per query (default: {TOP}, or all of a smaller gallery)",
    )
    parser.add_argument(
        "--skip_unreadable",
        action="store_true",
        help="go on without images that cannot be read, and list them at the end",
    )
    parser.add_argument(
        "--index",
        type=Path,
        metavar="DIR",
        help="folder of the gallery's index (default: one below runs/search for each gallery); an index of "
        "other weights, keys or images, or a damaged one, is replaced with --rebuild only",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="make an index anew that is damaged, or of other weights, keys "
        "or images: all features of the gallery are extracted again",
    )
    parser.add_argument(
        "--index_type",
        choices=(FLAT, *APPROXIMATE),
        default=FLAT,
        help="flat: exact; ivfpq, hnsw: approximate and faster for millions of images, with the recall against "
        "exact search told (default: flat)",
    )
    parser.add_argument(
        "--re_rank",
        type=cli.positive_int,
        metavar="K",
        help="order the K nearest of each query by k-reciprocal re-ranking, and show the first of them",
    )
    parser.add_argument(
        "--return_pattern",
        type=int,
        choices=RETURN_PATTERNS,
        default=3,
        help="features: 1 original, 2 enhanced, 3 both (default: 3)",
    )
    return parser


def main() -> None:
    parser = search_parser(
        "Find the images of a gallery that are most like each query. Without --output and --csv the hits of "
        "the first queries are printed."
    )
    parser.add_argument(
        "--query",
        type=Path,
        required=True,
        metavar="PLACE",
        help="a FOLDER like that of the gallery, or one image such as FOLDER/RGB/x.jpg, which is searched for "
        "together with its siblings in FOLDER/NI and FOLDER/TI",
    )
    parser.add_argument(
        "--keep_self",
        action="store_true",
        help="let a query whose files are in the gallery be a hit of itself, which it is not otherwise",
    )
    cli.add_output(
        parser,
        "--output",
        ".html",
        help="write a page with queries, hits and distances, a single file for any browser",
    )
    cli.add_output(
        parser,
        "--csv",
        ".csv",
        help="write the columns query,rank,gallery,distance; files are the first of their triplets",
    )
    with cli.parse_in_group(parser) as (arguments, cfg):
        from demo_sdtps.retrieval.search import search

        result = search(arguments, cfg)
        if result:
            from demo_sdtps.reports.search_page import show

            show(arguments, result)
