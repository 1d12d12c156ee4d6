"""The programs of docs/retrieval.md for databases, on 10,000 exported features: the hits of exact search."""

import re
from pathlib import Path

import numpy as np
import postgres
import pytest
from commands import ROOT
from feature_stores import stack_of
from numeric import numpy_generator, tolerance

from demo_sdtps.datasets import Sample
from demo_sdtps.retrieval.export import write_parquet
from demo_sdtps.retrieval.nearest import nearest

ROWS, WIDTH, TOP = 10_000, 64, 10
ALL = np.arange(ROWS)
CAMERAS = ALL // 500 % 4
QUERIES = range(0, ROWS, 400)
RECALL = 0.95
"""That HNSW has to reach with the settings of the page: a share of the ten nearest."""
MODALITIES = {"RGB", "NI", "TI"}
BLOCKS = re.findall(
    r"^```python\n(.*?)^```",
    (ROOT / "docs" / "retrieval.md").read_text(encoding="utf-8"),
    re.S | re.M,
)


@pytest.fixture(scope="module")
def features():
    """500 persons, each from 4 cameras: rows of length 1."""
    draws = numpy_generator(4)
    persons = draws.standard_normal((500, WIDTH))[ALL % 500]
    features = persons + draws.standard_normal((ROWS, WIDTH))
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(params=["float32", "float16"])
def gallery(request, features, tmp_path, monkeypatch):
    """A folder with gallery.parquet, the current one → its features as float32."""
    monkeypatch.chdir(tmp_path)
    written = features.astype(request.param)
    samples = [
        Sample((f"RGB/ä {row}.jpg", None if row % 5 else "ni.jpg", "ti.jpg"), row % 500, camera)
        for row, camera in enumerate(CAMERAS.tolist())
    ]
    groups = [(samples[at : at + 4096], written[at : at + 4096]) for at in range(0, ROWS, 4096)]
    facts = {"split": "gallery", "return_pattern": 3, "checkpoint_sha256": "0f" * 32}
    write_parquet(Path("gallery.parquet"), groups, facts, MODALITIES)
    return written.astype(np.float32)


def run_program(library):
    """The program of the page that imports a library is run: → its variables."""
    (code,) = [block for block in BLOCKS if f"import {library}\n" in block]
    variables = {}
    exec(code, variables)
    return variables


def row_of(name):
    return int(re.fullmatch(r"RGB/ä (\d+)\.jpg", name)[1])


def nearest_rows(query, gallery, rows):
    """The nearest of some rows by our exact search: → their rows and distances."""
    names = [f"{row:05}" for row in rows]
    hits = nearest(gallery[query : query + 1], stack_of(gallery[rows], 4096), names, TOP)
    return rows[hits.rows[0]], hits.distances[0]


def others(query):
    """Rows of other cameras."""
    return np.flatnonzero(CAMERAS[query] != CAMERAS)


def assert_nearest(hits, query, gallery, rows):
    """The hits, names and distances, are those of exact search; near ties may change places, as databases compute in
    float32."""
    actual, allowed = np.array([row_of(name) for name, _ in hits]), 4 * tolerance(WIDTH)
    _, distances = nearest_rows(query, gallery, rows)
    of_actual = np.square(gallery[actual].astype(float) - gallery[query]).sum(axis=1)
    assert len(set(actual)) == TOP and np.isin(actual, rows).all()
    assert np.abs(of_actual - distances).max() < allowed
    assert np.abs([distance for _, distance in hits] - of_actual).max() < allowed


def test_duckdb_reads_the_file(gallery, capfd):
    pytest.importorskip("duckdb", reason="duckdb is not installed (pip install duckdb)")
    duckdb = run_program("duckdb")["duckdb"]
    shown = capfd.readouterr().out
    assert "RGB,NI,TI" in shown and "checkpoint_sha256" in shown and "0f" * 32 in shown
    lists = duckdb.sql("SELECT feature FROM 'gallery.parquet' WHERE present LIKE '%NI%'").fetchall()
    assert np.array_equal(np.array([feature for (feature,) in lists], np.float32), gallery[::5])


@pytest.mark.slow
def test_lancedb_finds_what_exact_search_does(gallery):
    pytest.importorskip("lancedb", reason="lancedb is not installed (pip install lancedb)")
    hits = [(hit["name"], hit["_distance"]) for hit in run_program("lancedb")["hits"]]
    assert_nearest(hits, 0, gallery, others(0))


@pytest.mark.slow
def test_pgvector_finds_what_exact_search_does(gallery, monkeypatch):
    """By the sequential scan exactly, in other cameras too; by the HNSW index nearly all."""
    reason = "psycopg is not installed (pip install 'psycopg[binary]')"
    psycopg = pytest.importorskip("psycopg", reason=reason)
    with postgres.server() as place:
        monkeypatch.setenv("PGHOST", str(place))
        monkeypatch.setenv("PGUSER", "postgres")
        with psycopg.connect("dbname=postgres", autocommit=True) as database:
            database.execute("CREATE DATABASE features")
        hits = run_program("psycopg")["hits"]
        assert len(hits) == TOP and {CAMERAS[row_of(name)] for name, _ in hits} == {1, 2, 3}
        with psycopg.connect("dbname=features") as database:
            assert database.execute("SELECT count(*) FROM gallery").fetchone() == (ROWS,)

            def search(query, condition="", explain=""):
                line = (
                    f"{explain} SELECT name, (feature <-> %(vector)s::vector) ^ 2 FROM gallery "
                    f"{condition} ORDER BY feature <-> %(vector)s::vector LIMIT {TOP}"
                )
                return database.execute(line, {"vector": str(gallery[query].tolist())}).fetchall()

            database.execute("SET hnsw.ef_search = 400")
            database.execute("SET hnsw.iterative_scan = strict_order")
            database.execute("SET enable_seqscan = off")
            assert "Index Scan using gallery_feature_idx" in str(search(0, explain="EXPLAIN"))
            found = 0
            for query in QUERIES:
                for condition, rows in conditions(query):
                    expected, _ = nearest_rows(query, gallery, rows)
                    actual = [row_of(name) for name, _ in search(query, condition)]
                    assert len(actual) == TOP and np.isin(actual, rows).all()
                    found += len({*actual} & {*expected.tolist()})
            assert found >= RECALL * 2 * TOP * len(QUERIES)
            database.execute("SET enable_seqscan = on")
            database.execute("SET enable_indexscan = off")
            assert "Seq Scan" in str(search(0, explain="EXPLAIN"))
            for query in QUERIES:
                for condition, rows in conditions(query):
                    assert_nearest(search(query, condition), query, gallery, rows)


def conditions(query):
    """What limits a search, and the rows that it leaves: all, and those of other cameras."""
    return ("", ALL), (f"WHERE camera <> {CAMERAS[query]}", others(query))
