"""A gallery's index with killed and simultaneous processes."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT
from numeric import numpy_generator
from PIL import Image

from demo_sdtps.config import UserError
from demo_sdtps.datasets.folders import read_folder
from demo_sdtps.retrieval import search
from demo_sdtps.retrieval.nearest import nearest
from demo_sdtps.retrieval.table import open_table

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")]),
}
KILLS = int(os.environ.get("TEST_KILLS", "4"))
pytestmark = pytest.mark.slow
SIZE, COUNT, BATCH, TOP = 4, 320, 16, 10
WIDTH = 3 * SIZE**2
ORIGIN = {"checkpoint_sha256": "a" * 64, "return_pattern": 3, "configuration": {}}


def paint(place, numbers, seed):
    """Images of the gallery at a place."""
    folder = place / "gallery" / "RGB"
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(seed)
    for number in numbers:
        pixels = draws.integers(0, 256, (SIZE, SIZE, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")


def pixels_of(triplets, log=None):
    """Features of triplets: their pixels. Their names are a line of the file `log`."""
    if log:
        with open(log, "a") as file:
            print(*(triplet.name for triplet in triplets), file=file)
    images = [np.asarray(Image.open(triplet.files[0]), np.float32) for triplet in triplets]
    features = np.array(images, np.float32).reshape(-1, WIDTH)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def update_index(place, log=None):
    """What has changed."""
    folder = place / "gallery"
    triplets = read_folder(folder)
    index = search.open_index(place / "index", folder, ORIGIN, triplets, WIDTH, rebuild=False)
    return search.update(index, folder, triplets, partial(pixels_of, log=log))


def hits_at(place):
    """The hits of some queries in the index at a place, their names and distances, or the sentence by which it is refused."""
    queries = numpy_generator(5).random((20, WIDTH), np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    try:
        names, (features, _) = open_table(Path(place, "index")).side()
    except UserError as error:
        return str(error)
    hits = nearest(torch.from_numpy(queries), features, TOP)
    return names[hits.rows].tolist(), hits.distances.tolist()


def main(place):
    """Update the index in small batches and search it, when a line comes; → its seconds."""
    place = Path(place)
    search.BATCH = BATCH
    paint(place / "first", range(COUNT), 1)  # what is imported late is loaded
    update_index(place / "first")
    hits_at(place / "first")
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    try:
        update_index(place, place / "log")
    except UserError as error:
        sys.exit(f"error: {error}")
    hits = hits_at(place)
    sys.exit(hits if isinstance(hits, str) else print(time.monotonic() - started))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "BATCH", BATCH)
    paint(tmp_path, range(COUNT), 0)
    (tmp_path / "log").write_text("")
    return tmp_path


def start(place, *before):
    """A process that updates and searches the index when it is told to."""
    words = [*before, sys.executable, __file__, place]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(words, text=True, cwd=ROOT, env=ENVIRONMENT, **pipes)
    while (line := process.stdout.readline()) != "ready\n":
        assert line, process.stderr.read()
    return process


def tell(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def undisturbed(place):
    """The hits of an index that is made anew."""
    with tempfile.TemporaryDirectory() as other:
        os.symlink(place / "gallery", Path(other, "gallery"))
        update_index(Path(other))
        return hits_at(other)


@pytest.mark.soak
def test_killed_processes_lose_the_batch_in_hand_at_most(place):
    """At random moments of making an index and of bringing it up to date; the next command goes on."""
    draws = numpy_generator(1)
    seconds = float(start(place).communicate("go\n")[0].split()[-1])
    for number in range(KILLS):
        if number % 3 == 0:
            shutil.rmtree(place / "index")
        else:
            paint(place, draws.permutation(COUNT)[: COUNT // 3], number)
        (place / "log").write_text("")
        tell(process := start(place))
        time.sleep(seconds * draws.random())
        process.kill()
        process.communicate()
        batches = [line.split() for line in (place / "log").read_text().splitlines()]
        (place / "log").write_text("")
        update_index(place, log=place / "log")
        rest = (place / "log").read_text().split()
        assert {*rest}.isdisjoint(itertools.chain(*batches[:-1]))
        assert hits_at(place) == undisturbed(place) and not any(update_index(place))


@pytest.mark.soak
def test_two_processes_that_update_an_index_at_once_leave_a_right_one(place):
    """A new one, then changed images; one of them may be refused."""
    for number in range(2):
        paint(place, range(number * COUNT // 2), number)
        both = [start(place), start(place)]
        for process in both:
            tell(process)
        for process in both:
            _, errors = process.communicate()
            refusal = "was changed by another process meanwhile"
            assert process.returncode == 0 or refusal in errors, errors
        update_index(place)
        assert hits_at(place) == undisturbed(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
