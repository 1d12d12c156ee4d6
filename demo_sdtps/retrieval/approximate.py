"""Approximate search in large galleries, by LanceDB's index of the features (docs/search.md)."""

import numpy as np

from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import APPROXIMATE
from demo_sdtps.retrieval.features import Nearest
from demo_sdtps.retrieval.nearest import View, nearest
from demo_sdtps.retrieval.table import FEATURE, ROW_ID, Rows, Table, engine_errors

FEWEST = 256  # triplets of an index; fewer are searched exactly
PARTITION, PROBES = 1 << 16, 8  # rows of each graph (HNSW), and graphs that are searched
LEAST, PER_HIT = 100, 10  # candidates, at least and per hit
SAMPLE = 100  # queries by which recall is measured, at most


def approximate(
    rows: Rows, is_measured: bool, queries: np.ndarray, gallery: View, top: int
) -> Nearest:
    """`nearest` among candidates of the index of a table's features, and if `is_measured` its recall for some of the queries is
    printed. The search is exact by other columns than whole features, and among fewer than FEWEST rows."""
    title = f"{APPROXIMATE}, {gallery.name}"
    if len(gallery) < FEWEST or queries.shape[1] != rows.table.width:
        print_lines(
            f"{title}: exact search of {len(gallery)} triplets by {queries.shape[1]} columns"
        )
        return nearest(queries, gallery, top)
    candidates = find_candidates(rows, queries, max(LEAST, PER_HIT * top))
    candidates[~np.isin(candidates, gallery.rows)] = -1
    hits = nearest(queries, gallery, top, candidates)
    if is_measured:
        sample = np.linspace(0, len(queries) - 1, min(SAMPLE, len(queries))).astype(int)
        exact = nearest(queries[sample], gallery, top)
        share = recall(Nearest(*(column[sample] for column in hits)), exact)
        print_lines(f"{title}: recall@{top} {share:.3f} (queries: {len(sample)})")
    return hits


def refresh(table: Table) -> bool:
    """Make the index of a table's features where there is none, or let it grow; → whether it had to."""
    from lancedb.index import HnswSq

    with engine_errors(table.place):
        (handle := table.handle).checkout_latest()
        if handle.count_rows() < FEWEST:
            return False
        if is_new := not handle.list_indices():
            partitions = -(-handle.count_rows() // PARTITION)
            index = HnswSq("l2", partitions, max_iterations=8, sample_rate=64, ef_construction=100)
            handle.create_index(FEATURE, config=index)
        (built,) = handle.list_indices()
        if has_more := handle.index_stats(built.name).num_unindexed_rows > 0:
            handle.optimize()
    return is_new or has_more


def find_candidates(rows: Rows, queries: np.ndarray, count: int) -> np.ndarray:
    """The rows (Q, count) int64 that the index of their table has as the nearest of queries (Q, D), -1 for none."""
    candidates, order = np.full((len(queries), count), -1), rows.reading_order()
    for line, query in zip(candidates, queries, strict=True):
        search = rows.features.search(query).nprobes(PROBES).ef(count).limit(count)
        ids = search.select(["_distance"]).with_row_id(True).to_arrow()[ROW_ID].to_numpy()
        places = order[np.searchsorted(rows.ids, ids, sorter=order).clip(max=len(rows) - 1)]
        line[: len(ids)] = np.where(rows.ids[places] == ids, places, -1)
    return candidates


def recall(hits: Nearest, exact: Nearest) -> float:
    """recall@top: the share of the hits (Q, top) that are as near as those of the exact search."""
    return float((hits.distances <= exact.distances[:, -1:]).mean())
