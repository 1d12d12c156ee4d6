"""Data sets that are drawn: demo-sdtps synthetic --root data/synthetic, and synthetic captions --root data"""

import argparse
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from demo_sdtps.config import UserError, cli
from demo_sdtps.datasets.synthetic import MARKER
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import lock_file, read_json
from synthetic import pedestrians, shapes, vehicles
from synthetic.scene import CAMERAS
from synthetic.triplets import FOLDER, MINIMUM_SIZE, write_data_set

Recipe = dict[str, Any]  # everything that determines the content of the files


class Number(NamedTuple):
    """Flag with a whole number from `least` to `most`; without a default it is absent unless given."""

    name: str
    default: int | None
    help: str
    least: int = 1
    most: float = math.inf
    metavar: str = "N"


TRIPLET_FLAGS = (
    Number("identities", 100, "persons or vehicles of the training split"),
    Number("test_identities", 40, "other ones, of the test split"),
    # the running number in the names of files has two digits
    Number("images_per_camera", 3, "triplets of each of them and camera, at most 100", most=100),
    Number("height", None, "of images (128; vehicles: 64)", MINIMUM_SIZE[0], metavar="PIXELS"),
    Number("width", None, "of images (64; vehicles: 128)", MINIMUM_SIZE[1], metavar="PIXELS"),
    Number("seed", 0, "another seed gives other identities and images", least=0),
    Number("quality", 92, "JPEG quality, 1 to 100", most=100),
)
SWITCHES = {
    "vehicles": "vehicles in place of pedestrians; they fill the picture, whose borders cut them",
    "loose": "unaligned crops: the object is anywhere in the picture, at half to full height, as detectors give them; "
    "identities, cameras, light and surroundings are those of the same seed without this flag",
}
SKIP = Number("skip_identities", 0, "leave out the first N identities of the seed", least=0)
WORKERS = Number("workers", os.cpu_count() or 1, "processes, which do not change the images")
SHAPES = "shapes"
CAPTION_FLAGS = (
    # Matching needs at least one other image.
    Number("images", 800, "images of the training split", least=2),
    Number("dev_images", 100, "other images, of the dev split", least=2),
    Number("test_images", 200, "other images, of the test split", least=2),
    # A scene of two shapes has few more.
    Number("captions", 5, "short captions of each image, at most 20", most=20),
    Number("size", 64, "height and width of the images", shapes.MINIMUM_SIDE, metavar="PIXELS"),
    Number("seed", 0, "another seed gives other images and captions", least=0),
)


def parse_flags(
    arguments: list[str] | None,
    description: str,
    folder: str,
    numbers: Sequence[Number],
    **switches: str,
) -> argparse.Namespace:
    """Flags of a tool that writes the data set `folder`; `switches` are help texts by name."""
    parser = argparse.ArgumentParser(
        description=f"{description} The same arguments give the same files, byte for byte.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    root_help = f"folder that will hold {folder}/"
    parser.add_argument(
        "--root", required=True, type=Path, help=root_help, metavar="DIR", default=argparse.SUPPRESS
    )
    for name, default, meaning, _, _, metavar in numbers:
        value = argparse.SUPPRESS if default is None else default
        parser.add_argument(f"--{name}", type=int, default=value, metavar=metavar, help=meaning)
    for name, meaning in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    cli.add_overwrite(
        parser, f"replace DIR/{folder} if this tool made it; no other folder is replaced"
    )
    options = cli.read_arguments(parser, arguments)
    for name, _, _, least, most, _ in numbers:
        value = getattr(options, name, least)
        if not least <= value <= most:
            limits = f"{least} or more" if most == math.inf else f"from {least} to {most}"
            raise UserError(f"--{name} is {value}; it must be {limits}.")
    return options


def make_data_set(
    target: Path, recipe: Recipe, overwrite: bool, fill: Callable[[Path], Recipe | None]
) -> bool:
    """Write a data set to `target` unless it is there already, made by the same recipe → whether it was written. `fill` writes
    the files and may return further entries for the marker file."""
    marker = read_marker(target)
    if marker is not None and all(marker.get(key) == value for key, value in recipe.items()):
        cli.print_lines(
            f"{target} is up to date: it was made with these arguments, nothing was written."
        )
        return False
    _check_free(target, overwrite)
    temporary = target.with_name(f".{target.name}.part")
    fresh = temporary / target.name
    with lock_file(target.with_name(f".{target.name}.lock"), f"The folder {target}"):
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed process
        try:
            fresh.mkdir(parents=True)
            marker = {**recipe, **(fill(fresh) or {})}
            (fresh / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
            if target.exists():
                target.rename(temporary / ".replaced")
            fresh.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return True


def read_marker(target: Path) -> Recipe | None:
    """The marker that a tool wrote to `target`; None where there is none."""
    return read_json(target / MARKER, {"version": int})


def _check_free(target: Path, overwrite: bool) -> None:
    """Raise `UserError` unless `target` is absent, empty, or written by a tool and to be replaced."""
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if target.is_symlink() or read_marker(target) is None:
        raise UserError(
            f"{target} was not made by this tool (it has no {MARKER}, or is a link), so it is not replaced; choose "
            "another --root."
        )
    if not overwrite:
        raise UserError(f"{target} exists; choose another --root, or pass --overwrite.")


def triplets(arguments: list[str] | None = None) -> None:
    options = parse_flags(
        arguments,
        "Write synthetic pedestrians, or vehicles, in RGB, near and thermal infrared, in the layout of RGBNT201.",
        FOLDER,
        (*TRIPLET_FLAGS, SKIP, WORKERS),
        **SWITCHES,
    )
    target = options.root / FOLDER
    kind = vehicles if options.vehicles else pedestrians
    values = dict(zip(("height", "width"), kind.SIZE, strict=True)) | vars(options)
    numbers = {number.name: values[number.name] for number in TRIPLET_FLAGS}
    changed = {name: values[name] for name in (*SWITCHES, SKIP.name) if values[name]}
    recipe = {"version": kind.VERSION, "arguments": numbers | changed}

    def fill(folder: Path) -> Recipe:
        drawing = {"unaligned": options.loose, "workers": options.workers}
        drawing["skip_identities"] = options.skip_identities
        return {"triplets": write_data_set(folder, kind, **numbers, **drawing)}

    if not make_data_set(target, recipe, options.overwrite, fill):
        return
    per_identity = len(CAMERAS) * options.images_per_camera
    cli.print_lines(
        f"Wrote {options.identities * per_identity} training triplets of {options.identities} identities and "
        f"{options.test_identities * per_identity} test triplets of {options.test_identities} others, "
        f"{numbers['height']}x{numbers['width']} pixels (height x width), to {target}",
        f"To train on it, give DATASETS.NAMES Synthetic DATASETS.ROOT_DIR {options.root}",
    )


def captioned(arguments: list[str] | None = None) -> None:
    options = parse_flags(
        arguments,
        "Write images of coloured shapes with short and long captions, in the layout of image-text data sets, and a tiny BERT "
        "with random weights and their vocabulary.",
        SHAPES,
        CAPTION_FLAGS,
    )
    check_extra("The text tower", "seps", {"transformers": "transformers"})
    target = options.root / SHAPES
    recipe = {
        "version": shapes.SHAPES_VERSION,
        "tower": shapes.BERT,
        "arguments": {number.name: getattr(options, number.name) for number in CAPTION_FLAGS},
    }
    write = partial(shapes.write_captioned, options=options)
    if not make_data_set(target, recipe, options.overwrite, write):
        return
    cli.print_lines(
        f"Wrote {options.images} training, {options.dev_images} dev and {options.test_images} test images of "
        f"{options.size}x{options.size} pixels, {options.captions} captions and a long one each, and a text tower, to {target}",
        f"To train on it, give DATASETS.ROOT_DIR {options.root} DATASETS.NAMES {SHAPES} MODEL.TEXT_TOWER "
        f"{target / shapes.TEXT_TOWER}",
    )
