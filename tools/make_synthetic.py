"""Write a synthetic triplet data set in the layout and with the names of RGBNT201, plus foreground masks.

    python tools/make_synthetic.py --root data/synthetic
"""
if not __package__:  # run as a script: of its checkout demo_sdtps alone is found, no folder under its common name
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))
    import demo_sdtps  # noqa: F401

    sys.path[:] = [folder for folder in sys.path if folder not in (str(ROOT), str(Path(__file__).resolve().parent))]


import argparse
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.cli import run
from demo_sdtps.config.progress import progress
from demo_sdtps.synthetic.folder import check_free, marker_of, written_folder
from demo_sdtps.synthetic.pedestrians import (
    CAMERAS,
    MINIMUM_SIZE,
    VERSION,
    Identity,
    draw_triplet,
    is_night,
    make_identities,
)

FOLDER, MASKS = "RGBNT201", "MASK"
SPLITS = ("train_171", "test")
MOST_PER_CAMERA = 100  # the running number in a file name has two digits


@dataclass(frozen=True)
class Task:
    """The images of one identity: all that a worker needs to know."""

    folder: Path
    number: int
    identity: Identity
    seed: int
    images_per_camera: int
    height: int
    width: int
    quality: int


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description="Write synthetic pedestrians (RGB, near infrared, thermal infrared) in RGBNT201's layout, with "
                    "foreground masks beside them. The same arguments give the same files, byte for byte.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--root", required=True, type=Path, help="folder that will hold RGBNT201/", metavar="DIR",
                      default=argparse.SUPPRESS)
    made.add_argument("--identities", type=int, default=100, metavar="N", help="people to train on")
    made.add_argument("--test_identities", type=int, default=40, metavar="N", help="other people, to test on")
    made.add_argument("--images_per_camera", type=int, default=3, metavar="N",
                      help=f"triplets of each person from each of the {len(CAMERAS)} cameras")
    made.add_argument("--height", type=int, default=128, metavar="PIXELS", help="height of the images")
    made.add_argument("--width", type=int, default=64, metavar="PIXELS", help="width of the images")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="another seed gives other people and images")
    made.add_argument("--quality", type=int, default=92, metavar="N", help="JPEG quality, 1 to 100")
    made.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N",
                      help="processes that draw; they do not change what is drawn")
    made.add_argument("--overwrite", action="store_true",
                      help="replace DIR/RGBNT201 if this tool made it; anything else there is left alone")
    return made


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    check(options)
    identities = make_identities(options.identities + options.test_identities, options.seed)
    target = options.root / FOLDER
    # Everything that decides what is in the files, and nothing else.
    recipe = {"version": VERSION, "arguments": {name: getattr(options, name) for name in (
        "identities", "test_identities", "images_per_camera", "height", "width", "seed", "quality")}}
    if is_up_to_date(target, recipe):
        print(f"{target} is up to date: it was made with these arguments, nothing was written.")
        return
    check_free(target, options.overwrite)
    write(target, recipe, identities, options)
    per_identity = len(CAMERAS) * options.images_per_camera
    print(f"Wrote {options.identities * per_identity} training triplets of {options.identities} identities and "
          f"{options.test_identities * per_identity} test triplets of {options.test_identities} others, "
          f"{options.height}x{options.width} pixels (height x width), with masks, to {target}\n"
          f"To train on it, give DATASETS.ROOT_DIR {options.root}")


def check(options: argparse.Namespace) -> None:
    """Raise UserError for a number that cannot be drawn."""
    for name in ("identities", "test_identities", "images_per_camera", "height", "width", "workers"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}; it must be 1 or more.")
    if options.seed < 0:
        raise UserError(f"--seed is {options.seed}; it must be 0 or more.")
    if not 1 <= options.quality <= 100:
        raise UserError(f"--quality is {options.quality}; it must be from 1 to 100.")
    if options.images_per_camera > MOST_PER_CAMERA:
        raise UserError(f"--images_per_camera is {options.images_per_camera}; the two-digit running number in the file "
                        f"names allows {MOST_PER_CAMERA} at most.")
    for name, least in zip(("height", "width"), MINIMUM_SIZE, strict=True):
        if getattr(options, name) < least:
            raise UserError(f"--{name} is {getattr(options, name)} pixels, too small to draw a person; "
                            f"it must be {least} or more.")


def is_up_to_date(target: Path, recipe: dict) -> bool:
    """Whether this tool made `target` by this recipe and no image has gone since."""
    marker = marker_of(target, recipe)
    return marker is not None and all(
        len(list((target / split / kind).glob("*"))) == marker.get("triplets", {}).get(split)
        for split in SPLITS for kind in (*MODALITIES, MASKS))


def write(target: Path, recipe: dict, identities: list[Identity], options: argparse.Namespace) -> None:
    """Draw everything into a folder that takes the place of `target` when it is complete."""
    with written_folder(target) as (fresh, marker):
        for split in SPLITS:
            for kind in (*MODALITIES, MASKS):
                (fresh / split / kind).mkdir(parents=True)
        tasks = [Task(fresh / SPLITS[index >= options.identities], index + 1, identity, options.seed,
                      options.images_per_camera, options.height, options.width, options.quality)
                 for index, identity in enumerate(identities)]
        triplets = dict.fromkeys(SPLITS, 0)
        drawn = draw_all(tasks, options.workers)
        for split, written in progress(drawn, "drawing", len(tasks), unit="identity"):
            triplets[split] += written
        marker.update(recipe, triplets=triplets)


def draw_all(tasks: list[Task], workers: int) -> Iterator[tuple[str, int]]:
    """Do the tasks; the results in no promised order."""
    if workers == 1:
        yield from map(draw_identity, tasks)
        return
    with multiprocessing.Pool(min(workers, len(tasks)), initializer=obey_parent) as pool:
        yield from pool.imap_unordered(draw_identity, tasks)


def obey_parent() -> None:
    """In a worker: leave Ctrl-C to the parent, which ends its workers and removes what is half-written."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def draw_identity(task: Task) -> tuple[str, int]:
    """Write all images of one identity; the name of its split and the number of triplets."""
    for camera in range(len(CAMERAS)):
        for index in range(task.images_per_camera):
            rng = np.random.default_rng([task.seed, 2, task.number, camera, index])
            night = is_night(camera, rng)
            images, mask = draw_triplet(task.identity, camera, night, task.height, task.width, rng)
            name = f"{task.number:06d}_cam{camera + 1}_{int(night)}_{index:02d}"
            for modality, image in images.items():
                Image.fromarray(image).save(task.folder / modality / f"{name}.jpg", quality=task.quality)
            Image.fromarray(np.uint8(mask) * 255).save(task.folder / MASKS / f"{name}.png")
    return task.folder.name, len(CAMERAS) * task.images_per_camera


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an orderly exit removes the temporary folder
    run(main)
