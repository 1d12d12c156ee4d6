"""Approximate search by an index in a table: candidates in the order of exact search, growth, and filters."""

import re
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from modality_sets import ALL_SOURCES, comparison, present_in
from numeric import numpy_generator

from demo_sdtps.config import MODALITIES
from demo_sdtps.retrieval.approximate import approximate, recall, refresh
from demo_sdtps.retrieval.nearest import Nearest, nearest, search_sets
from demo_sdtps.retrieval.table import create_table, open_table

WIDTH, COUNT, TOP = 24, 600, 5  # three parts of a feature, of RGB, NI and TI
SETS = [{*MODALITIES}, {"RGB", "TI"}, {*MODALITIES}]  # of the triplets in turn


def draw_features(draws, count, width=WIDTH):
    """Around twelve times fewer centres, each part of length 1 / √3, as those of a model."""
    centres = draws.standard_normal((count // 12 + 1, width))
    features = centres[draws.integers(len(centres), size=count)]
    features += 0.4 * draws.standard_normal((count, width))
    parts = features.reshape(count, 3, -1)
    parts /= np.linalg.norm(parts, axis=2, keepdims=True) * 3**0.5
    return parts.reshape(count, width).astype(np.float32)


def make_columns(first, count, sets=SETS):
    """Columns of triplets, whose names are not in the order of the rows."""
    numbers = range(first, first + count)
    present = [sets[number % len(sets)] for number in numbers]
    return {
        "name": [f"{number * 7919 % 9973:05} ä" for number in numbers],
        "present": [",".join(name for name in MODALITIES if name in each) for each in present],
        "camera": [number % 4 for number in numbers],
    }


@pytest.fixture
def table(tmp_path):
    """A table of `COUNT` triplets, of two sets."""
    columns = {"name": pa.string(), "present": pa.string(), "camera": pa.int64()}
    table = create_table(tmp_path / "index", {"format": 4}, columns, WIDTH)
    table.put(make_columns(0, COUNT), draw_features(numpy_generator(1), COUNT))
    return table


def search(table, queries, sets, how="all", where=None, exact=False):
    """The hits of both ways, by names, and their distances."""
    has_grown = not exact and refresh(table)
    rows = table.read(where)
    way = nearest if exact else partial(approximate, rows, has_grown)
    query = torch.from_numpy(queries), present_in(sets)
    hits = search_sets(comparison(ALL_SOURCES["3C"], how), query, rows, TOP, way)
    return rows.names(hits.rows).tolist(), hits.distances


def share_of_hits(one, other):
    return np.mean([len({*a} & {*b}) / TOP for a, b in zip(one, other, strict=True)])


def test_hits_are_nearly_those_of_exact_search_with_its_distances(table, capsys):
    """By the index for whole features, of all rows and of those that a filter leaves; exact by other columns."""
    queries = draw_features(numpy_generator(1), 40)
    for where in (None, "camera <> 2", "camera = 2"):
        expected = search(table, queries, 40 * [{*MODALITIES}], "all", where, exact=True)
        names, far = search(table, queries, 40 * [{*MODALITIES}], "all", where)
        assert share_of_hits(names, expected[0]) > 0.95
        same = [a == b for a, b in zip(names, expected[0], strict=True)]
        assert np.mean(same) > 0.8 and np.array_equal(far[same], expected[1][same])
    (share,) = re.findall(r"recall@5 ([01]\.\d{3}) \(queries: 40\)", capsys.readouterr().out)
    assert float(share) > 0.95  # measured once, when the index is made
    for sets in (40 * [{"RGB"}], 40 * [{*MODALITIES}]):
        expected = search(table, queries, sets, "shared", exact=True)
        names, far = search(table, queries, sets, "shared")
        assert share_of_hits(names, expected[0]) > 0.95 and "exact" in capsys.readouterr().out


def test_an_index_grows_by_what_is_added_and_forgets_what_is_deleted(table, monkeypatch, capsys):
    """Without another training; another process's table is as good."""
    queries = draw_features(numpy_generator(1), 20)
    sets = 20 * [{*MODALITIES}]
    search(table, queries, sets)

    def train(*_, **__):
        raise AssertionError("an index is trained again")

    monkeypatch.setattr(type(table.handle), "create_index", train)
    more = draw_features(numpy_generator(2), 90)
    more[:20] = queries  # as near as can be
    added, gone = make_columns(COUNT, 90), make_columns(0, 1)["name"][0]
    table.put(added, more)
    table.delete([gone])
    other = open_table(table.place)
    capsys.readouterr()
    names, _ = search(other, queries, sets)
    assert [line[0] for line in names] == added["name"][:20]
    assert gone not in {name for line in names for name in line}
    assert share_of_hits(names, search(other, queries, sets, exact=True)[0]) > 0.95
    assert "recall@5" in capsys.readouterr().out and not refresh(other)
    (index,) = other.handle.list_indices()
    assert other.handle.index_stats(index.name).num_unindexed_rows == 0


def test_recall_is_the_share_of_hits_that_are_as_near():
    exact = Nearest(np.arange(6).reshape(2, 3), np.array([[0, 1, 2], [1, 1, 1]], float))
    assert recall(exact, exact) == 1
    assert recall(Nearest(exact.rows, np.array([[0, 2, 3], [1, 1, 1.5]])), exact) == 4 / 6
