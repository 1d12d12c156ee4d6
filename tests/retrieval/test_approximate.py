"""Approximate search by an index in a table: candidates in the order of exact search, growth, and filters."""

import re
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
import torch
from modality_sets import ALL_SOURCES, comparison, present_in
from numeric import numpy_generator

from demo_sdtps.config import MODALITIES
from demo_sdtps.retrieval import approximate, nearest
from demo_sdtps.retrieval.engine import table_schema
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


def make_rows(first, features, sets=SETS):
    """Columns of triplets, whose names are not in the order of the rows."""
    numbers = range(first, first + len(features))
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
    table = create_table(tmp_path / "index", {}, table_schema(columns, WIDTH), "delete it")
    features = draw_features(numpy_generator(1), COUNT)
    table.put(make_rows(0, features), features)
    return table


def search(table, queries, sets, how="shared", where=None, exact=False):
    """The hits of both ways, by names, and their distances."""
    rows = table.read(where)
    way = nearest.nearest if exact else partial(approximate.approximate, table, rows)
    query = torch.from_numpy(queries), present_in(sets)
    compare = comparison(ALL_SOURCES["3C"], how)
    hits = nearest.search_sets(compare, query, rows, TOP, way)
    return rows.names(hits.rows).tolist(), hits.distances


def share_of_hits(one, other):
    return np.mean([len({*a} & {*b}) / TOP for a, b in zip(one, other, strict=True)])


@pytest.mark.parametrize("how", ["all", "shared"])
def test_hits_are_nearly_those_of_exact_search_with_its_distances(table, how, capsys):
    """Of whole features, and of the columns of a modality."""
    queries = draw_features(numpy_generator(1), 40)
    for one in ({*MODALITIES}, {"RGB"}):
        expected = search(table, queries, 40 * [one], how, exact=True)
        capsys.readouterr()
        names, far = search(table, queries, 40 * [one], how)
        printed = capsys.readouterr().out
        assert share_of_hits(names, expected[0]) > 0.95
        same = [a == b for a, b in zip(names, expected[0], strict=True)]
        assert np.mean(same) > 0.8
        assert np.array_equal(far[same], expected[1][same])
        shares = [float(text) for text in re.findall(r"recall@5 ([01]\.\d{3})", printed)]
        assert shares and min(shares) > 0.95, printed
        assert f", {how}: recall@5" in printed and "(queries: 40)" in printed
        assert ("exact search, as there are 200" in printed) == (how == "shared")


def test_an_index_grows_by_what_is_added_and_forgets_what_is_deleted(table, monkeypatch, capsys):
    """Without another training, that of whole features and that of columns; another process's table is as good."""
    queries = draw_features(numpy_generator(1), 20)
    both = 10 * [{*MODALITIES}] + 10 * [{"RGB"}]
    search(table, queries, both)
    capsys.readouterr()
    search(table, queries, both)
    again = capsys.readouterr().out
    assert again.count("recall@5") == 2

    def train(*_, **__):
        raise AssertionError("an index is trained again")

    monkeypatch.setattr(type(table.handle), "create_index", train)
    more = draw_features(numpy_generator(2), 90)
    more[:20] = queries  # as near as can be
    added = make_rows(COUNT, more, [{*MODALITIES}])
    table.put(added, more)
    gone = make_rows(0, queries)["name"][0]
    table.delete([gone])
    changed = draw_features(numpy_generator(3), 1)
    first = make_rows(3, changed)  # a row whose feature is another one now
    assert first["present"] == ["RGB,NI,TI"]
    table.put(first, changed)
    other = open_table(table.place, "delete it")
    assert search(other, changed, [{"RGB"}])[0][0][0] == first["name"][0]
    expected, far = search(other, queries, both, exact=True)
    names, actual = search(other, queries, both)
    assert share_of_hits(names, expected) > 0.95 and np.allclose(actual[:, 0], far[:, 0])
    assert [line[0] for line in names] == added["name"][:20] and gone not in {*chain(*names)}
    assert "recall@5" in capsys.readouterr().out
    for handle in (other.handle, open_columns(other)):
        (index,) = handle.list_indices()
        assert handle.index_stats(index.name).num_unindexed_rows == 0
    assert open_columns(other).count_rows() == 400 - 1 + 90


def open_columns(table):
    import lancedb

    return lancedb.connect(table.place).open_table("RGB_in_RGB_NI_TI_by_RGB_shared")


def test_a_filter_leaves_hits_of_its_rows_alone(table):
    """Before any index, and as a part of one; where it leaves few, the search is exact."""
    queries = draw_features(numpy_generator(1), 20)
    for where, least in (("camera <> 2", 0.95), ("camera = 2", 1), ("camera < 3", 0.95)):
        for sets in (20 * [{*MODALITIES}], 20 * [{"RGB"}]):
            expected = search(table, queries, sets, "all", where, exact=True)
            names, far = search(table, queries, sets, "all", where)
            assert share_of_hits(names, expected[0]) >= least
            kept = {*table.read(where).columns["name"].to_pylist()}
            assert all(kept.issuperset(line) for line in names)
            assert np.allclose(far[:, 0], expected[1][:, 0])
    search(table, queries, 20 * [{"RGB"}], "shared", "camera <> 2")
    whole = search(table, queries, 20 * [{"RGB"}])[0]
    assert share_of_hits(whole, search(table, queries, 20 * [{"RGB"}], exact=True)[0]) > 0.95


def test_recall_is_the_share_of_hits_that_are_as_near():
    exact = nearest.Nearest(np.arange(6).reshape(2, 3), np.array([[0, 1, 2], [1, 1, 1]], float))
    assert approximate.recall(exact, exact) == 1
    hits = nearest.Nearest(exact.rows, np.array([[0, 2, 3], [1, 1, 1.5]]))
    assert approximate.recall(hits, exact) == pytest.approx(4 / 6)
