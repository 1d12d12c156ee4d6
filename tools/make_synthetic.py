"""Write a synthetic triplet data set in the layout and with the names of RGBNT201, plus foreground masks.

    python tools/make_synthetic.py --root data/synthetic
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from config import MODALITIES, UserError
from config.cli import run
from config.progress import progress
from datasets.synthetic import CAMERAS, MINIMUM_SIZE, VERSION, Identity, draw_triplet, is_night, make_identities

FOLDER, MARKER, MASKS = "RGBNT201", "synthetic.json", "MASK"
SPLITS = ("train_171", "test")
MOST_PER_CAMERA = 100  # the running number in a file name has two digits


@dataclass(frozen=True)
class Task:
    """The pictures of one identity: all that a worker needs to know."""

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
    made.add_argument("--height", type=int, default=128, metavar="PIXELS", help="height of the pictures")
    made.add_argument("--width", type=int, default=64, metavar="PIXELS", help="width of the pictures")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="another seed gives other people and pictures")
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
    try:
        write(target, recipe, identities, options)
    except OSError as error:
        raise UserError(f"--root {options.root}: the data set could not be written there "
                        f"({error.strerror or error}); choose a folder that is writable and has room.") from error
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
    """Whether this tool made `target` by this recipe and no picture has gone since."""
    marker = read_marker(target)
    if marker is None or any(marker.get(key) != value for key, value in recipe.items()):
        return False
    return all(len(list((target / split / kind).glob("*"))) == marker.get("triplets", {}).get(split)
               for split in SPLITS for kind in (*MODALITIES, MASKS))


def read_marker(target: Path) -> dict | None:
    """What this tool recorded when it made `target`; None if it did not make it."""
    try:
        marker = json.loads((target / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and "version" in marker else None


def check_free(target: Path, overwrite: bool) -> None:
    """Raise UserError unless `target` is absent, empty, or an older work of this tool that may be replaced."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise UserError(f"{target} exists and is not a plain folder; choose another --root.")
    if not any(target.iterdir()):
        return
    made_here = read_marker(target) is not None
    if overwrite and not made_here:
        raise UserError(f"{target} is not empty and holds no {MARKER}, so this tool did not make it and it may be the "
                        f"real data set; --overwrite leaves it alone: choose another --root.")
    if not overwrite:
        raise UserError(f"{target} exists already and is not empty; choose another --root"
                        + (" or pass --overwrite to replace it." if made_here else "."))


def write(target: Path, recipe: dict, identities: list[Identity], options: argparse.Namespace) -> None:
    """Draw everything into a temporary folder beside `target` and put it in its place when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".synthetic-", dir=target.parent) as temporary:
        fresh = Path(temporary) / FOLDER
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
        (fresh / MARKER).write_text(json.dumps({**recipe, "triplets": triplets}, indent=2) + "\n")
        if target.exists():
            shutil.move(target, Path(temporary) / "replaced")
        fresh.rename(target)


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
    """Write all pictures of one identity; the name of its split and the number of triplets."""
    for camera in range(len(CAMERAS)):
        for index in range(task.images_per_camera):
            rng = np.random.default_rng([task.seed, 2, task.number, camera, index])
            night = is_night(camera, rng)
            pictures, mask = draw_triplet(task.identity, camera, night, task.height, task.width, rng)
            name = f"{task.number:06d}_cam{camera + 1}_{int(night)}_{index:02d}"
            for modality, picture in pictures.items():
                Image.fromarray(picture).save(task.folder / modality / f"{name}.jpg", quality=task.quality)
            Image.fromarray(np.uint8(mask) * 255).save(task.folder / MASKS / f"{name}.png")
    return task.folder.name, len(CAMERAS) * task.images_per_camera


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an orderly exit removes the temporary folder
    run(main)
