"""The programs of docs/retrieval.md for databases, on 10,000 exported features: the hits of exact search."""

import re
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT
from feature_stores import make_blocks
from numeric import numpy_generator, tolerance

from demo_sdtps.datasets import Sample
from demo_sdtps.retrieval.export import write_parquet
from demo_sdtps.retrieval.nearest import nearest

ROWS, WIDTH, TOP = 10_000, 64, 10
ALL = np.arange(ROWS)
CAMERAS = ALL // 500 % 4
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
    hits = nearest(gallery[query : query + 1], make_blocks(gallery[rows], 4096), names, TOP)
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
