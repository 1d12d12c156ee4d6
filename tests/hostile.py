"""Hostile input as data: files on disk, a command line, and the expected message."""
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import seps_tiny
import torch
from commands import CONFIG, ONE_LINE, cli_args_for

from demo_sdtps.config import load_cfg
from demo_sdtps.modeling import make_model

COMMANDS = {"train": "train_net", "test": "test_net", "export": "tools.export_features", "draw": "tools.draw_ranks",
            "tokens": "tools.draw_tokens",
            "convert": "tools.convert_checkpoint", "synthetic": "tools.make_synthetic", "train_seps": "train_seps"}
PROGRESS = ("reading images", "verifying images", "extracting features", "checking images", "tokenising", "encoding",
        "drawing")
"""Titles of progress bars, which may remain in stderr."""


class Place(NamedTuple):
    """Location of a case: a copy of a tiny data set, a folder for other files, and the number of the damaged image."""

    root: Path
    folder: Path
    number: int = 5

    @property
    def test(self) -> Path:
        """The folders of the test images."""
        return self.root / "RGBNT201" / "test"

    def image(self, modality: str = "NI") -> Path:
        return sorted((self.test / modality).iterdir())[self.number]


class Case(NamedTuple):
    """Command with `cli_args` ({root} and {folder} are replaced) after `make`; it must report `says`, or succeed if empty."""

    name: str
    command: str
    make: Callable[[Place], object]
    cli_args: tuple[str, ...]
    says: tuple[str, ...]


def table(cases):
    """Parametrisation of cases with unique names."""
    assert len({case.name for case in cases}) == len(cases)
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def main_of(name):
    return seps_tiny.test_seps.main if name == "test_seps" else importlib.import_module(f"demo_sdtps.{COMMANDS[name]}").main


def run_case(case: Case, place: Place, command) -> tuple[str, str]:
    """Make the files of a case, call its command and check the outcome → stdout and stderr."""
    case.make(place)
    given = cli_args_of(case, place)
    before = tree(place.folder.parent)
    code, stdout, stderr = command(main_of(case.command), *given)
    assert "Traceback" not in stderr, stderr
    if not case.says:
        assert code == 0, stderr
        return stdout, stderr
    assert code == 2, stderr
    lines = [line for line in stderr.replace("\r", "\n").splitlines() if line.strip() and not line.strip().startswith(PROGRESS)]
    sentence = lines[-1]
    assert ONE_LINE in sentence and not stdout
    # argparse prints the usage before its error.
    assert len(lines) == 1 or lines[0].startswith("usage: "), stderr
    missing = [part for part in (part.format(**place._asdict()) for part in case.says) if part not in sentence]
    assert not missing, sentence
    assert tree(place.folder.parent) == before
    return stdout, stderr


def cli_args_of(case: Case, place: Place) -> list[str]:
    """Command line of a case: that of the tiny data, unless the case has its own, then `case.cli_args`; later pairs win."""
    own = [arg.format(**place._asdict()) if "{" in arg else arg for arg in case.cli_args]
    if case.command in ("convert", "synthetic") or own == ["--config_file"]:
        return own
    if case.command.endswith("seps"):
        shared = seps_tiny.cli_args_for(place.root)
    else:
        shared = cli_args_for(place.root, "SOLVER.MAX_EPOCHS", "1", "SOLVER.EVAL_UNTRAINED", "False")
    first = own[:2] if own[:1] == ["--config_file"] else []
    return [*(first or shared[:2]), *shared[2:], "OUTPUT_DIR", str(place.folder / "output"), *own[len(first):]]


def tree(folder: Path) -> dict[str, object]:
    """All paths below a folder: the target of a link, size and time of a file, True for a folder."""
    found = {}
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(where, name)
            status = os.lstat(path)
            found[path] = os.readlink(path) if os.path.islink(path) else os.path.isdir(path) or (
                status.st_size, status.st_mtime_ns)
    return found


def weights_for(root: Path, path: Path, change: Callable[[dict], object] = lambda content: None, cameras: int = 4) -> Path:
    """Write a changed checkpoint of the tiny model."""
    torch.manual_seed(0)
    model = make_model(load_cfg(CONFIG, cli_args_for(root)[2:]), 6, cameras)
    content = {"model": model.state_dict(), "dataset": "RGBNT201", "camera_num": cameras}
    torch.save(change(content) or content, path)
    return path


class Bomb:
    """Makes a folder when it is unpickled by `pickle`."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)
