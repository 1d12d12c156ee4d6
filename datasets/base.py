"""Samples, readers of data sets, and the checks that all readers share (docs/data.md)."""
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from demo_sdtps.config import MODALITIES, UserError

SPLITS = ("train", "query", "gallery")

VIS_NI_TH = {"RGB": "vis", "NI": "ni", "TI": "th"}  # folders of the MSV data sets (MSVR310, MSVWild863)


@dataclass(frozen=True)
class Sample:
    """One triplet."""

    paths: tuple[str, ...]  # of RGB, NI and TI, or a single one of an image with the three side by side
    identity: int  # as on disk
    camera: int  # from 0
    scene: int = 0


@dataclass(frozen=True)
class Reader:
    """Reader of one data set; `layout` and `instead` are parts of error messages."""

    read: Callable[[Path, str], list[Sample]]  # (root, split) → samples, sorted by path
    layout: str
    by_scene: bool = False  # the protocol excludes by identity and scene in place of camera (docs/method.md)
    instead: str = ""  # alternative to a missing data set
    trained_as: tuple[str, ...] = ()  # further names of the data set in checkpoints
    locate: Callable[[Path], Path] | None = None  # DATASETS.ROOT_DIR → folder, where that is not always `folder`

    @property
    def folder(self) -> str:
        return self.layout.split("/")[0]

    def folder_in(self, root: Path) -> Path:
        """Path of the folder of the data set, which need not exist."""
        return self.locate(root) if self.locate else root / self.folder


@dataclass(frozen=True)
class Naming:
    """File names of a data set; `example` and `meaning` are parts of error messages."""

    pattern: re.Pattern  # with the groups identity, camera and optionally scene
    example: str
    meaning: str
    first_camera: int = 1  # its number in the file names

    def sample(self, paths: tuple[str, ...]) -> Sample:
        """Sample of these files, parsed from the name of the first. Raises `UserError` where it does not match."""
        match = self.pattern.fullmatch(Path(paths[0]).name)
        if not match:
            raise UserError(f"The image {paths[0]} does not follow the data set's names such as {self.example} "
                            f"({self.meaning}); rename or remove it.")
        parsed = {name: int(value) for name, value in match.groupdict().items()}
        parsed["camera"] -= self.first_camera
        return Sample(paths, **parsed)


def existing(folder: Path) -> Path:
    """`folder`. Raises `UserError` where it is missing, with the probable location."""
    if not folder.is_dir():
        raise UserError(f"The folder {folder} is missing{found_instead(folder)}.")
    return folder


def found_instead(folder: Path) -> str:
    """Part of a message: a folder in other capitalisation or one level too deep in place of a missing one; "" for none."""
    # The outermost missing folder.
    while not folder.parent.is_dir() and folder.parent != folder:
        folder = folder.parent
    if renamed := folder_in_other_letters(folder.parent, folder.name):
        return f", but there is {renamed}: rename it to {folder.name}"
    for between in subfolders(folder.parent):
        if deeper := folder_in_other_letters(between, folder.name):
            return f", but there is {deeper}, one level too deep: move what is in {between} to {folder.parent}"
    return ""


def folder_in_other_letters(parent: Path, name: str) -> Path | None:
    """Folder in `parent` with this name, ignoring case."""
    return next((folder for folder in subfolders(parent) if folder.name.casefold() == name.casefold()), None)


def subfolders(parent: Path) -> list[Path]:
    """Sorted subfolders; none where `parent` cannot be read."""
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return []


def image_names(folder: Path) -> set[str]:
    """Names of the images in a folder, unordered. Raises `UserError` for a missing folder or an image that is no file."""
    try:
        with os.scandir(existing(folder)) as entries:
            found = {entry.name: entry.is_file(follow_symlinks=False) or os.path.isfile(entry)
                     for entry in entries if entry.name.endswith(".jpg")}
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read ({error.strerror}).") from None
    # Checked before opening: opening a named pipe would block.
    for name, is_file in found.items():
        if not is_file:
            raise UserError(f"The image {folder / name} is no file (a folder, or a link to nothing?); replace it or remove "
                            "its triplet.")
    return set(found)


def triplet_paths(folder: Path, names: dict[str, str]) -> list[tuple[str, ...]]:
    """Sorted paths of the triplets in `folder`, by folder name of each modality. Raises `UserError` for a missing image."""
    found = {modality: image_names(folder / names[modality]) for modality in MODALITIES}
    for name in sorted(set().union(*found.values())):
        missing = [modality for modality in MODALITIES if name not in found[modality]]
        if missing:
            there = next(modality for modality in MODALITIES if modality not in missing)
            raise UserError(f"The triplet {name} in {folder} has no {' and no '.join(missing)} image: "
                            f"{folder / names[missing[0]] / name} is missing; add it or remove the triplet's other "
                            f"images such as {folder / names[there] / name}.")
    return [tuple(str(folder / names[modality] / name) for modality in MODALITIES) for name in sorted(found["RGB"])]


def identity_labels(samples: Iterable[Sample]) -> dict[int, int]:
    """Identity on disk → class label 0 … K-1, in the order of the identities."""
    return {identity: label for label, identity in enumerate(sorted({sample.identity for sample in samples}))}
