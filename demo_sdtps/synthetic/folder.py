"""Flags of the tools that make synthetic data sets, and the folders that they write: marked, complete or absent."""

import argparse
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import add_overwrite, print_lines, read_arguments
from demo_sdtps.datasets.synthetic import MARKER
from demo_sdtps.runtime.files import lock_file, read_json

Recipe = dict[str, Any]  # everything that determines the content of the files


class Number(NamedTuple):
    """Flag with a whole number from `least` to `most`; without a default it is absent unless given."""

    name: str
    default: int | None
    help: str
    least: int = 1
    most: float = math.inf
    metavar: str = "N"


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
    add_overwrite(parser, f"replace DIR/{folder} if this tool made it; no other folder is replaced")
    options = read_arguments(parser, arguments)
    for name, _, _, least, most, _ in numbers:
        value = getattr(options, name, least)
        if not least <= value <= most:
            limits = f"{least} or more" if most == math.inf else f"from {least} to {most}"
            raise UserError(f"--{name} is {value}; it must be {limits}.")
    return options


def make_data_set(
    target: Path, recipe: Recipe, overwrite: bool, fill: Callable[[Path], Recipe | None]
) -> bool:
    """Write a data set to `target` unless it is there already, made by the same recipe → whether it was written.

    `fill` writes the files and may return further entries for the marker file.
    """
    marker = read_marker(target)
    if marker is not None and all(marker.get(key) == value for key, value in recipe.items()):
        print_lines(
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
