"""The commands that draw data sets: python -m synthetic --root data/synthetic, and python -m synthetic captions --root data."""

import argparse
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from demo_sdtps.commands import cli
from demo_sdtps.config import UserError
from demo_sdtps.datasets.published import MARKER
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import read_json
from synthetic import pedestrians, shapes, vehicles
from synthetic.scene import CAMERAS
from synthetic.triplets import FOLDER, write_data_set

OUTSIDE = ("root", "overwrite", "workers")  # flags that do not determine the content of the files


def triplets(words: list[str] | None = None) -> None:
    """Write pedestrians or vehicles; `words` are the flags, by default those of the command."""
    parser = make_parser("Write pedestrians, or vehicles, in the layout of RGBNT201.", FOLDER)
    cli.add_count(parser, "--identities", 100, "persons or vehicles of the training split")
    cli.add_count(parser, "--test_identities", 40, "other ones, of the test split")
    cli.add_count(parser, "--images_per_camera", 3, "triplets of each of them and camera")
    cli.add_count(parser, "--height", None, "of images in pixels (default: 128; vehicles: 64)")
    cli.add_count(parser, "--width", None, "of images in pixels (default: 64; vehicles: 128)")
    cli.add_count(parser, "--workers", os.cpu_count() or 1, "processes, which change no image")
    meaning = "leave out the first N identities of the seed (default: 0)"
    parser.add_argument("--skip_identities", type=int, default=0, metavar="N", help=meaning)
    meaning = "vehicles in place of pedestrians; they fill the picture, whose borders cut them"
    cli.add_switch(parser, "--vehicles", meaning)
    meaning = (
        "unaligned crops, as detectors give them, of the same identities, cameras and surroundings"
    )
    cli.add_switch(parser, "--loose", meaning)
    options = cli.read_arguments(parser, words)
    kind = vehicles if options.vehicles else pedestrians
    options.height, options.width = options.height or kind.SIZE[0], options.width or kind.SIZE[1]
    # What is not given is not in the recipe; a seed always is.
    values = {name: value for name, value in vars(options).items() if name not in OUTSIDE}
    arguments = {name: value for name, value in values.items() if value or name == "seed"}
    recipe = {"version": kind.VERSION, "arguments": arguments}
    del values["vehicles"]

    def fill(folder: Path) -> dict[str, Any]:
        counts = write_data_set(folder, kind, workers=options.workers, **values)
        return recipe | {"triplets": counts}

    if make_data_set(options.root / FOLDER, recipe, options.overwrite, fill):
        per_identity = len(CAMERAS) * options.images_per_camera
        cli.print_lines(
            f"Wrote {options.identities * per_identity} training triplets of {options.identities} identities and "
            f"{options.test_identities * per_identity} test triplets of {options.test_identities} others, "
            f"{options.height}x{options.width} pixels (height x width), to {options.root / FOLDER}",
            f"To train on it, give DATASETS.NAMES Synthetic DATASETS.ROOT_DIR {options.root}",
        )


def captioned(words: list[str] | None = None) -> None:
    """Write shapes with captions; `words` are the flags, by default those of the command."""
    description = (
        "Write images of coloured shapes with short and long captions, in the layout of image-text data sets, and a tiny BERT "
        "with random weights and their vocabulary."
    )
    parser = make_parser(description, shapes.FOLDER)
    cli.add_count(parser, "--images", 800, "images of the training split")
    cli.add_count(parser, "--dev_images", 100, "other images, of the dev split")
    cli.add_count(parser, "--test_images", 200, "other images, of the test split")
    # A scene of two shapes has few more.
    cli.add_choice(parser, "--captions", range(1, 21), 5, "short captions of each image")
    cli.add_count(parser, "--size", 64, "height and width of the images in pixels")
    options = cli.read_arguments(parser, words)
    check_extra("The text tower", "seps", {"transformers": "transformers"})
    arguments = {name: value for name, value in vars(options).items() if name not in OUTSIDE}
    recipe = {"version": shapes.VERSION, "tower": shapes.BERT, "arguments": arguments}
    target = options.root / shapes.FOLDER

    def fill(folder: Path) -> dict[str, Any]:
        shapes.write_captioned(folder, **arguments)
        return recipe

    if make_data_set(target, recipe, options.overwrite, fill):
        cli.print_lines(
            f"Wrote {options.images} training, {options.dev_images} dev and {options.test_images} test images, "
            f"{options.captions} captions and a long one each, and a text tower, to {target}",
            f"To train on it, give DATASETS.ROOT_DIR {options.root} DATASETS.NAMES {shapes.FOLDER} MODEL.TEXT_TOWER "
            f"{target / shapes.TEXT_TOWER}",
        )


def make_parser(description: str, folder: str) -> argparse.ArgumentParser:
    """The parser of a command that writes the data set `folder`."""
    description += " The same arguments give the same files, byte for byte."
    parser = argparse.ArgumentParser(description=description)
    cli.add_path(parser, "--root", "DIR", f"folder that will hold {folder}/")
    meaning = f"replace DIR/{folder} if this tool made it; no other folder is replaced"
    cli.add_overwrite(parser, meaning)
    meaning = "another seed gives other images (default: 0)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=meaning)
    return parser


def make_data_set(
    target: Path, recipe: dict[str, Any], overwrite: bool, fill: Callable[[Path], dict[str, Any]]
) -> bool:
    """Write a data set to `target` unless it is there already, made by the same recipe → whether it was written. `fill` writes
    the files and returns the content of the marker file, the recipe and more. Raises `UserError` for another folder at
    `target`, and without `overwrite` for one of another recipe; a failure leaves `target` as it was."""
    marker = read_json(target / MARKER, {"version": int}, {})
    if marker and all(marker.get(key) == value for key, value in recipe.items()):
        cli.print_lines(
            f"{target} is up to date: it was made with these arguments, nothing was written."
        )
        return False
    is_there = target.exists() and any(target.iterdir())
    if is_there and not (marker and overwrite):
        reason = "exists" if marker else f"was not made by this tool (it has no {MARKER})"
        advice = ", or pass --overwrite" if marker else ""
        raise UserError(f"{target} {reason}; choose another --root{advice}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        fresh = Path(temporary, target.name)
        fresh.mkdir()
        (fresh / MARKER).write_text(json.dumps(fill(fresh), indent=2) + "\n")
        if is_there:
            shutil.rmtree(target)
        fresh.replace(target)
    return True
