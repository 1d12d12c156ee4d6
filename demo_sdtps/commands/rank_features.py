"""mAP and CMC of exported features, larger than the memory: python tools/rank_features.py --query Q --gallery G"""

import argparse
from pathlib import Path

from demo_sdtps.config import cli
from demo_sdtps.config.common import TOP


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Rank a gallery for queries by features that export_features.py wrote, and print mAP and Rank-k as "
        "test_net.py does, without gallery samples of the query's identity and scene, or camera where there are no "
        "scenes; --csv writes the nearest of each query. Q and G are .npz files or folders of shards. "
        "The queries are in memory, the gallery's shards are read one by one."
    )
    parser.add_argument(
        "--query", type=Path, required=True, metavar="Q", help="features of the queries"
    )
    parser.add_argument(
        "--gallery", type=Path, required=True, metavar="G", help="features of the gallery"
    )
    parser.add_argument(
        "--feat_norm",
        choices=("yes", "no"),
        default="yes",
        help="L2-normalise the features, as TEST.FEAT_NORM (default: yes)",
    )
    cli.add_count(parser, "--top", TOP, "hits per query of --csv")
    cli.add_output(parser, "--json", ".json", help="write the figures there as well, in [0, 1]")
    cli.add_output(
        parser,
        "--csv",
        ".csv",
        help="write the columns query,rank,gallery,distance: the nearest of the whole gallery, "
        "none excluded, by squared Euclidean distance of L2-normalised features",
    )
    arguments = cli.read_arguments(parser)
    from demo_sdtps.retrieval.ranking import rank_stores

    rank_stores(arguments)
