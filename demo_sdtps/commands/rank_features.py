"""mAP and CMC of exported features, larger than the memory: demo-sdtps rank --query Q --gallery G"""

import argparse

from demo_sdtps.config import cli
from demo_sdtps.config.common import CROSS_MODAL_DISTANCES, TOP
from demo_sdtps.config.schema import YES_NO


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Rank a gallery for queries by features that demo-sdtps export wrote, and print mAP and Rank-k as "
        "demo-sdtps test does, without gallery samples of the query's identity and scene, or camera where there are no "
        "scenes; --csv writes the nearest of each query, which may be of another data set, such as own images. "
        "Q and G are .npz files, or tables in a folder or at an address such as s3://bucket/gallery. "
        "The queries are in memory, a table of the gallery is read batch by batch."
    )
    cli.add_path(parser, "--query", "Q", "features of the queries", str)
    cli.add_path(parser, "--gallery", "G", "features of the gallery", str)
    cli.add_where(parser)
    cli.add_choice(parser, "--feat_norm", YES_NO, "yes", "L2-normalise, as TEST.FEAT_NORM")
    key = "as TEST.CROSS_MODAL_DISTANCE"
    cli.add_choice(parser, "--cross_modal_distance", CROSS_MODAL_DISTANCES, "shared", key)
    cli.add_count(parser, "--top", TOP, "hits per query of --csv, at most all")
    cli.add_output(parser, "--json", ".json", help="write the figures there as well, in [0, 1]")
    cli.add_output(
        parser,
        "--csv",
        ".csv",
        help="write the columns query,rank,gallery,distance: the nearest of the whole gallery, "
        "none excluded, by squared Euclidean distance of L2-normalised features",
    )
    arguments = cli.read_arguments(parser)
    from demo_sdtps.retrieval.ranking import rank_exports

    rank_exports(arguments)
