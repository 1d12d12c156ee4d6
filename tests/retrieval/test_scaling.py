"""Beyond one process, as docs/search.md has it: tables in object storage by a real server, and extraction by Ray."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from commands import KEEP_ALL, ROOT, copy
from numeric import assert_close, numpy_generator
from pages import program
from pyarrow import parquet
from tiny import MODEL

import demo_sdtps
from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.retrieval.engine import table_schema
from demo_sdtps.retrieval.table import create_table, open_table

pytestmark = pytest.mark.slow
SETTINGS = KEEP_ALL
STEPS, STEP, WIDTH = 8, 50, 16
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
READER = """
import sys
import time
import numpy as np
from demo_sdtps.retrieval.nearest import nearest
from demo_sdtps.retrieval.table import open_table
place, query, rows = sys.argv[1], np.load(sys.argv[2])[:1], int(sys.argv[3])
table, count = open_table(place, ""), -1
while count < rows:
    gallery = table.read()
    if len(gallery) > count:
        count = len(gallery)
        names = gallery.names(nearest(query, gallery.features, 10).rows[0]) if count else []
        print(count, *names, flush=True)
    time.sleep(0.05)  # a reader that never waits takes the server's time
"""


def start(*words):
    return subprocess.Popen([sys.executable, *map(str, words)], **PIPES)


def test_two_processes_search_a_table_in_object_storage_while_a_third_adds(bucket, tmp_path):
    """Each search has the hits of one version: of whole batches, in the order in which they were written."""
    features = numpy_generator(3).standard_normal((STEPS * STEP, WIDTH)).astype(np.float32)
    np.save(tmp_path / "features.npy", features)
    schema = table_schema({"name": pa.string(), "present": pa.string()}, WIDTH)
    table = create_table(f"{bucket}/growing", {}, schema, "")
    words = ("-c", READER, table.place, tmp_path / "features.npy", len(features))
    readers = [start(*words) for _ in range(2)]
    try:
        lines = [[reader.stdout.readline()] for reader in readers]
        for at in range(0, len(features), STEP):
            names = [f"{row:04}" for row in range(at, at + STEP)]
            table.put({"name": names, "present": ["RGB"] * STEP}, features[at : at + STEP])
        for reader, own_lines in zip(readers, lines, strict=True):
            stdout, stderr = reader.communicate(timeout=60)
            assert reader.returncode == 0, stderr
            own_lines += stdout.splitlines()
    finally:
        for reader in readers:
            reader.kill()
    distances = np.square(features.astype(float) - features[0]).sum(axis=1)
    for count, *hits in (line.split() for each in lines for line in each):
        assert int(count) % STEP == 0
        assert [*map(int, hits)] == distances[: int(count)].argsort()[:10].tolist()
    assert all(len(each) > 2 and each[-1].startswith(f"{len(features)} ") for each in lines)


@pytest.mark.soak
def test_searches_share_an_index_in_object_storage(bucket, place, weights, run_search):
    """Three commands at once, as images are added: the hits of an index in a folder."""
    places = ("folder", f"{bucket}/photos")
    assert all(run_search("--index", index)[0] == 0 for index in places)
    for modality in MODALITIES:
        for number in range(3):
            image = place / "gallery" / modality / f"photo {number + 2}.jpg"
            copy(image, place / "gallery" / modality / f"added {number}.jpg")
    words = ("search", "--weight", weights, "--gallery", "gallery", "--query", "query")
    index = ("--index", places[1])
    commands = [
        start("-m", "demo_sdtps.commands", *words, *index, "--csv", f"{number}.csv")
        for number in range(2)
    ]
    assert run_search(*index, "--csv", "2.csv")[0] == 0
    for command in commands:
        _, stderr = command.communicate(timeout=120)
        assert command.returncode == 0, stderr
    assert run_search("--index", "folder", "--csv", "folder.csv")[0] == 0
    expected = hits(place / "folder.csv")
    assert len(expected) == 16 and any("added" in row[2] for row in expected)
    assert all(hits(place / f"{number}.csv") == expected for number in range(3))


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("AWS_ALLOW_HTTP", "false", "AWS_ALLOW_HTTP is not true"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "the server does not answer"),
        (None, None, "there is no such bucket"),
    ],
)
def test_object_storage_that_cannot_be_reached_is_said_so(
    bucket, monkeypatch, variable, value, message
):
    if variable:
        monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=f"^The table .* cannot be reached: {message}"):
        open_table(f"{bucket}/x" if variable else "s3://other/x", "")


def hits(path):
    return [*csv.reader(path.read_text().splitlines())][1:]


@pytest.mark.soak
def test_workers_of_ray_extract_the_features_of_one_process(place, weights, monkeypatch):
    """In blocks of 64 triplets, which two workers share; one image is missing."""
    copy(weights, place / "runs" / "demo" / "best.pth")
    for number in range(70):
        for modality in ("RGB", "TI"):
            image = place / "gallery" / modality / f"photo {number % 5}.jpg"
            copy(image, place / "photos" / modality / f"{number:02}.jpg")
    (place / "photos" / "TI" / "03.jpg").unlink()
    (place / "program.py").write_text(program("search", "ray"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    done = subprocess.run([sys.executable, "program.py"], **PIPES, timeout=240)
    assert done.returncode == 0, done.stderr
    table = parquet.read_table("features").sort_by("name")
    assert len(table) == 70 and len([*Path("features").iterdir()]) == 2
    assert table["ti"].null_count == 1 and table["ni"].null_count == 70
    images = {name: table[name].to_pylist() for name in ("rgb", "ti")}
    expected = demo_sdtps.load(weights, device="cpu").features(**images, return_pattern=1)
    assert_close(np.stack(table["feature"].to_numpy()), expected, *MODEL, *MODEL)
    assert str(ROOT) not in done.stdout
