"""A gallery's index that is made, brought up to date and searched by several processes, which may be killed."""

import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from numeric import numpy_generator
from PIL import Image

from demo_sdtps.config import UserError
from demo_sdtps.datasets.folders import read_folder
from demo_sdtps.retrieval import gallery
from demo_sdtps.retrieval.nearest import View, nearest
from demo_sdtps.retrieval.table import open_table

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
    index = gallery.open_index(place / "index", folder, ORIGIN, triplets, WIDTH, rebuild=False)
    return gallery.update(index, folder, triplets, partial(pixels_of, log=log))


def hits_at(place):
    """The hits of some queries in the index at a place, their names and distances, or the sentence by which it is refused."""
    queries = numpy_generator(5).random((20, WIDTH), np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    try:
        rows = open_table(Path(place, "index")).read()
        hits = nearest(queries, View(rows, np.arange(len(rows))), TOP)
    except UserError as error:
        return str(error)
    return rows.names(hits.rows).tolist(), hits.distances.tolist()


def main(place):
    """Update the index in small batches and search it, when a line comes; → its seconds."""
    place = Path(place)
    gallery.BATCH = BATCH
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


if __name__ == "__main__":
    main(*sys.argv[1:])
