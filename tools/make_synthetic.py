"""Write synthetic triplets in the layout of RGBNT201, with masks: python tools/make_synthetic.py --root data/synthetic"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import multiprocessing
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image

from demo_sdtps.config import MODALITIES
from demo_sdtps.config.cli import print_lines, run
from demo_sdtps.config.progress import progress
from demo_sdtps.config.scores import MASK
from demo_sdtps.synthetic import pedestrians
from demo_sdtps.synthetic.folder import Number, Recipe, make_data_set, parse_flags
from demo_sdtps.synthetic.pedestrians import CAMERAS, MINIMUM_SIZE, Identity

FOLDER = "RGBNT201"
SPLITS = ("train_171", "test")
NUMBERS = (
    Number("identities", 100, "persons of the training split"),
    Number("test_identities", 40, "other persons, of the test split"),
    Number("images_per_camera", 3, f"triplets of each person from each of the {len(CAMERAS)} cameras, at most 100: the running "
           "number in the file names has two digits", most=100),
    Number("height", 128, "height of the images", MINIMUM_SIZE[0], metavar="PIXELS"),
    Number("width", 64, "width of the images", MINIMUM_SIZE[1], metavar="PIXELS"),
    Number("seed", 0, "another seed gives other persons and images", least=0),
    Number("quality", 92, "JPEG quality, 1 to 100", most=100),
)
LOOSE = {"loose": "loose crops: the person stands anywhere in the picture, at half to full height, as detectors give them; "
         "identities, cameras, light and surroundings are those of the same seed without this flag"}
SKIP = Number("skip_identities", 0, "leave out the first N persons of the seed, such as those of another data set", least=0)
WORKERS = Number("workers", os.cpu_count() or 1, "processes that draw; their number does not change the images")


class Task(NamedTuple):
    """The images of one identity, for one call of a worker."""

    folder: Path
    number: int
    identity: Identity
    options: argparse.Namespace


def main(arguments: list[str] | None = None) -> None:
    options = parse_flags(arguments, "Write synthetic pedestrians (RGB, near infrared, thermal infrared) in the layout of "
                          "RGBNT201, with foreground masks.", FOLDER, (*NUMBERS, SKIP, WORKERS), LOOSE)
    skipped = options.skip_identities
    identities = pedestrians.make_identities(skipped + options.identities + options.test_identities, options.seed)[skipped:]
    target = options.root / FOLDER
    numbers = {number.name: getattr(options, number.name) for number in NUMBERS}
    numbers |= {name: value for name, value in (("loose", options.loose), (SKIP.name, skipped)) if value}
    recipe = {"version": pedestrians.VERSION, "arguments": numbers}
    if not make_data_set(target, recipe, options.overwrite, partial(is_complete, target),
                         partial(draw_all, identities=identities, options=options)):
        return
    per_identity = len(CAMERAS) * options.images_per_camera
    print_lines(f"Wrote {options.identities * per_identity} training triplets of {options.identities} identities and "
                f"{options.test_identities * per_identity} test triplets of {options.test_identities} others, "
                f"{options.height}x{options.width} pixels (height x width), with masks, to {target}",
                f"To train on it, give DATASETS.ROOT_DIR {options.root}")


def is_complete(target: Path, marker: Recipe) -> bool:
    return all(len(list((target / split / kind).glob("*"))) == marker.get("triplets", {}).get(split)
               for split in SPLITS for kind in (*MODALITIES, MASK))


def draw_all(folder: Path, identities: list[Identity], options: argparse.Namespace) -> Recipe:
    """Write the images of all identities → {"triplets": their number in each split}."""
    for split in SPLITS:
        for kind in (*MODALITIES, MASK):
            (folder / split / kind).mkdir(parents=True)
    tasks = [Task(folder / SPLITS[index >= options.identities], options.skip_identities + index + 1, identity, options)
             for index, identity in enumerate(identities)]
    triplets = dict.fromkeys(SPLITS, 0)
    for split, written in progress(map_tasks(tasks, options.workers), "drawing", len(tasks), unit="identity"):
        triplets[split] += written
    return {"triplets": triplets}


def map_tasks(tasks: list[Task], workers: int) -> Iterator[tuple[str, int]]:
    """Results of the tasks, in no particular order."""
    if workers == 1:
        yield from map(draw_identity, tasks)
        return
    with multiprocessing.Pool(min(workers, len(tasks)), initializer=leave_signals_to_parent) as pool:
        yield from pool.imap_unordered(draw_identity, tasks)


def leave_signals_to_parent() -> None:
    """In a worker: ignore Ctrl-C; the parent process ends its workers and removes incomplete files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def draw_identity(task: Task) -> tuple[str, int]:
    """Write all images of one identity → its split and the number of triplets."""
    options = task.options
    for camera in range(len(CAMERAS)):
        for index in range(options.images_per_camera):
            rng = np.random.default_rng([options.seed, 2, task.number, camera, index])
            night = pedestrians.is_night(camera, rng)
            images, mask = pedestrians.draw_triplet(task.identity, camera, night, options.height, options.width, rng,
                                                    options.loose)
            name = f"{task.number:06d}_cam{camera + 1}_{int(night)}_{index:02d}"
            for modality, image in images.items():
                Image.fromarray(image).save(task.folder / modality / f"{name}.jpg", quality=options.quality)
            Image.fromarray(np.uint8(mask) * 255).save(task.folder / MASK / f"{name}.png")
    return task.folder.name, len(CAMERAS) * options.images_per_camera


if __name__ == "__main__":
    run(main)
