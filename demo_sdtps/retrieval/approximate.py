"""Approximate search in large galleries, by an index of LanceDB beside the features (docs/search.md)."""

import re
from contextlib import suppress

import numpy as np

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import APPROXIMATE
from demo_sdtps.retrieval.engine import CHECK, FEATURE, INDICES, damaged_files, table_schema
from demo_sdtps.retrieval.features import Nearest
from demo_sdtps.retrieval.nearest import FeatureBlocks, nearest
from demo_sdtps.retrieval.table import BATCH, Rows, Table, create_table, open_table

FEWEST = 256  # triplets of an index; fewer are searched exactly
PARTITION = 1 << 16  # rows of each graph (HNSW), of which PROBES are searched
PROBES = 8
LEAST, PER_HIT = 100, 10  # candidates, at least and per hit
SAMPLE = 100  # queries by which recall is measured, at most
WHOLE_CHECK = "whole_check"  # of the feature whose columns are in a table beside it
RECALL, MEASURED = b"recall", b"recall_rows"
"""Of the metadata of an index's column: its recall, and the rows that it had then."""


def approximate(
    table: Table, rows: Rows, queries: np.ndarray, gallery: FeatureBlocks, top: int
) -> Nearest:
    """`nearest` among candidates of an index, whose recall is printed: one in the table for whole features, for other columns
    one in a table of these beside it. Recall is measured where the index has changed, by some of the queries."""
    title = f"{APPROXIMATE}, {gallery.name}"
    if len(gallery) < FEWEST:
        print_lines(f"{title}: exact search, as there are {len(gallery)} triplets")
        return nearest(queries, gallery, top)
    with table.errors():
        is_whole = gallery.width == table.width
        indexed = table if is_whole else columns_table(table, rows, gallery)
        rows_indexed = str(refresh(indexed))
        about = indexed.handle.schema.field(FEATURE).metadata or {}
        count = min(len(gallery), max(LEAST, PER_HIT * top))
        candidates = find_candidates(indexed, queries, count, rows)
    candidates[~np.isin(candidates, gallery.rows)] = -1
    hits = nearest(queries, gallery, top, candidates)
    text = about.get(RECALL, b"").decode()
    if about.get(MEASURED, b"").decode() != rows_indexed:
        count = min(SAMPLE, len(queries))
        sample = np.unique(np.linspace(0, len(queries) - 1, count).round().astype(int))
        exact = nearest(queries[sample], gallery, top)
        share = recall(Nearest(*(column[sample] for column in hits)), exact)
        text = f"recall@{top} {share:.3f} against exact search (queries: {len(sample)})"
        with indexed.change():
            about = {RECALL.decode(): text, MEASURED.decode(): rows_indexed}
            indexed.handle.update_field_metadata({"path": FEATURE, "metadata": about})
    print_lines(f"{title}: {text}")
    return hits


def columns_table(table: Table, rows: Rows, gallery: FeatureBlocks) -> Table:
    """The table of the columns of `gallery`: rows whose whole features have changed are written again, or deleted."""
    import pyarrow as pa

    name, columns, stored = re.sub(r"\W+", "_", gallery.name), None, {}
    with suppress(UserError):  # damaged
        if before := open_table(table.place, table.advice, name):
            columns, stored = before, checksums(before, WHOLE_CHECK)
    if columns is None or columns.width != gallery.width:  # of another model
        schema = table_schema({table.key: pa.string(), WHOLE_CHECK: pa.uint64()}, gallery.width)
        columns, stored = create_table(table.place, {}, schema, table.advice, name=name), {}
    current = checksums(table, CHECK)
    keys = rows.columns[table.key].take(pa.array(gallery.rows)).to_pylist()
    places = [place for place, text in enumerate(keys) if stored.get(text) != current[text]]
    columns.delete([text for text, check in stored.items() if current.get(text) != check])
    for chosen in (places[start : start + BATCH] for start in range(0, len(places), BATCH)):
        texts = [keys[place] for place in chosen]
        values = {table.key: texts, WHOLE_CHECK: [current[text] for text in texts]}
        columns.put(values, gallery.take(gallery.rows[chosen]))
    return columns


def checksums(table: Table, column: str) -> dict[str, int]:
    """A column of checksums by the key."""
    with table.errors():
        result = table.handle.search().select([table.key, column]).to_arrow()
    return dict(zip(*(result[name].to_pylist() for name in (table.key, column)), strict=True))


def refresh(table: Table) -> int:
    """Make the index of a table's features where there is none or a damaged one, or let it grow; → its rows."""
    from lancedb.index import HnswSq

    handle = table.handle
    handle.checkout_latest()
    indices = handle.list_indices()
    if indices and (damaged := damaged_files(table.folder, INDICES)):
        print_lines(f"The approximate index in {table.place} is damaged and made anew")
        with table.change():
            handle.drop_index(indices.pop().name)
            for path in damaged:
                path.unlink(missing_ok=True)
    if not indices:
        partitions = -(-handle.count_rows() // PARTITION)
        index = HnswSq("l2", partitions, max_iterations=8, sample_rate=64, ef_construction=100)
        with table.change():
            handle.create_index(FEATURE, config=index)
    (built,) = handle.list_indices()
    if handle.index_stats(built.name).num_unindexed_rows:
        with table.change():
            handle.optimize()
    return handle.index_stats(built.name).num_indexed_rows


def find_candidates(table: Table, queries: np.ndarray, count: int, rows: Rows) -> np.ndarray:
    """Which of the rows (Q, count) int64 the index of a table has as the nearest of queries (Q, D), -1 for none."""
    import pyarrow.compute as pc

    query = table.handle.search(queries if len(queries) > 1 else queries[0])
    query, key = query.nprobes(PROBES).ef(count).limit(count), table.key
    result = query.select([key, "_distance"]).to_arrow()
    numbers = np.zeros(len(result), np.int64)
    if len(queries) > 1:
        numbers = result["query_index"].to_numpy()
    places = pc.fill_null(pc.index_in(result[key], value_set=rows.columns[key]), -1).to_numpy()
    candidates = np.full((len(queries), count), -1, np.int64)
    order = numbers.argsort(kind="stable")
    first = np.searchsorted(numbers[order], numbers[order])
    candidates[numbers[order], np.arange(len(order)) - first] = places[order]
    return candidates


def recall(hits: Nearest, exact: Nearest) -> float:
    """Share of the hits that are as near as those of the exact search: recall@top, for hits (Q, top) of both."""
    return float((hits.distances <= exact.distances[:, -1:]).mean())
