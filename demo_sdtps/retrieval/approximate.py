"""Approximate search in large galleries, by an index of LanceDB beside the features (docs/retrieval.md)."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import APPROXIMATE
from demo_sdtps.retrieval.blocks import FeatureBlocks
from demo_sdtps.retrieval.columns import CHECK, FEATURE
from demo_sdtps.retrieval.engine import connect, quote
from demo_sdtps.retrieval.features import Nearest
from demo_sdtps.retrieval.nearest import among, nearest
from demo_sdtps.retrieval.table import BATCH, Rows, Table

FEWEST = 256  # triplets of an index; fewer are searched exactly
PARTITION = 1 << 16  # rows of each graph (HNSW), of which PROBES are searched
PROBES = 8
LEAST, PER_HIT = 100, 10  # candidates, at least and per hit
SAMPLE = 100  # queries by which recall is measured, at most
RECALL, MEASURED = b"recall", b"recall_rows"
"""Of the metadata of an index's column: its recall, and the rows that it had then."""


def approximate(
    table: Table,
    rows: Rows,
    queries: np.ndarray,
    gallery: FeatureBlocks,
    names: Sequence[str],
    top: int,
) -> Nearest:
    """`nearest` among candidates of an approximate index, whose recall is printed.

    `gallery` are those of the `rows` of a set of modalities, in the columns of `queries` (Q, D). Whole features have an index
    in their table, other columns one in a table of their own beside it. An index is made where there is none, and grows by
    what has been added since. Recall is measured then, by some of the queries, as it takes an exact search.
    """
    title = f"{APPROXIMATE}, {gallery.name}"
    if len(gallery) < FEWEST:
        print_lines(f"{title}: exact search, as there are {len(gallery)} triplets")
        return nearest(queries, gallery, names, top)
    with table.errors():
        is_whole = gallery.width == table.width
        handle = table.handle if is_whole else columns_table(table, rows, gallery)
        rows_indexed = str(refresh(handle))
        about = handle.schema.field(FEATURE).metadata or {}
        count = min(len(gallery), max(LEAST, PER_HIT * top))
        candidates = find_candidates(handle, table.key, queries, count, rows)
    candidates[~np.isin(candidates, gallery.rows)] = -1
    hits = among(queries, gallery, names, top, candidates)
    text = about.get(RECALL, b"").decode()
    if about.get(MEASURED, b"").decode() != rows_indexed:
        count = min(SAMPLE, len(queries))
        sample = np.unique(np.linspace(0, len(queries) - 1, count).round().astype(int))
        exact = nearest(queries[sample], gallery, names, top)
        share = recall(Nearest(*(column[sample] for column in hits)), exact)
        text = f"recall@{top} {share:.3f} against exact search (queries: {len(sample)})"
        with table.errors():
            about = {RECALL.decode(): text, MEASURED.decode(): rows_indexed}
            handle.update_field_metadata({"path": FEATURE, "metadata": about})
    print_lines(f"{title}: {text}")
    return hits


def columns_table(table: Table, rows: Rows, gallery: FeatureBlocks) -> Any:
    """The table of the columns of `gallery`, brought up to date, beside that of whole features: what has another checksum there
    is written again, or deleted."""
    import pyarrow as pa

    key = table.schema.field(table.key)
    kind = pa.list_(pa.float32(), gallery.width)
    schema = pa.schema([key, pa.field(CHECK, pa.uint64()), pa.field(FEATURE, kind)])
    name, database = re.sub(r"\W+", "_", gallery.name), connect(table.place)
    handle = None
    with suppress(ValueError):  # there is none
        handle = database.open_table(name)
    if handle is None or handle.schema.field(FEATURE).type != kind:  # of another model
        handle = database.create_table(name, schema=schema, mode="overwrite")
    stored, current = (
        dict(zip(*(column.to_pylist() for column in each.columns), strict=True))
        for each in (
            each.search().select([table.key, CHECK]).to_arrow().select([table.key, CHECK])
            for each in (handle, table.handle)
        )
    )
    keys = rows.columns[table.key].take(pa.array(gallery.rows)).to_pylist()
    places = [place for place, text in enumerate(keys) if stored.get(text) != current[text]]
    outdated = [text for text, check in stored.items() if current.get(text) != check]
    for start in range(0, len(outdated), BATCH):
        handle.delete(f"{table.key} IN ({', '.join(map(quote, outdated[start : start + BATCH]))})")
    for start in range(0, len(places), BATCH):
        chosen = places[start : start + BATCH]
        values = pa.array(gallery.take(gallery.rows[chosen]).ravel())
        texts = [keys[place] for place in chosen]
        checks = pa.array([current[text] for text in texts], pa.uint64())
        lists = pa.FixedSizeListArray.from_arrays(values, type=kind)
        merge = handle.merge_insert(table.key).when_matched_update_all()
        merge.when_not_matched_insert_all().execute(
            pa.table([pa.array(texts, key.type), checks, lists], schema=schema)
        )
    return handle


def refresh(handle: Any) -> int:
    """Make the index of a table's features, or let it grow by what it does not have: → its rows."""
    from lancedb.index import HnswSq

    handle.checkout_latest()
    if not handle.list_indices():
        partitions = -(-handle.count_rows() // PARTITION)
        index = HnswSq("l2", partitions, max_iterations=8, sample_rate=64, ef_construction=100)
        handle.create_index(FEATURE, config=index)
    (built,) = handle.list_indices()
    if handle.index_stats(built.name).num_unindexed_rows:
        handle.optimize()
    return handle.index_stats(built.name).num_indexed_rows


def find_candidates(
    handle: Any, key: str, queries: np.ndarray, count: int, rows: Rows
) -> np.ndarray:
    """Which of the rows (Q, count) int64 the index has as the nearest of queries (Q, D), -1 for none."""
    import pyarrow.compute as pc

    query = handle.search(queries if len(queries) > 1 else queries[0]).nprobes(PROBES).ef(count)
    result = query.limit(count).select([key, "_distance"]).to_arrow()
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
