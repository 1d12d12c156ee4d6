"""Samples, readers of data sets, and the checks that all readers share (docs/train.md)."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from PIL import Image

from demo_sdtps.config import MODALITIES, UserError

SPLITS = TRAIN, QUERY, GALLERY = ("train", "query", "gallery")
VALIDATION = "validation"  # the identities that are left out of train (DATASETS.VALIDATION).

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
"""Accepted formats of images, whatever their ending. Pillow has others; for EPS it executes Ghostscript."""

UNKNOWN = -1  # identity and camera of images without labels

SYSTEM_FOLDERS = (
    *("@eaDir", "@Recycle", "@Recently-Snapshot", "#recycle", "#snapshot", "~snapshot"),
    *("__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found"),
)
"""Names of folders in which systems keep copies of images."""

# folders of the MSV data sets (MSVR310, MSVWild863)
VIS_NI_TH = {"RGB": "vis", "NI": "ni", "TI": "th"}


S = TypeVar("S", bound="Sample")


@dataclass(frozen=True)
class Sample:
    """One triplet."""

    # of RGB, NI and TI, None for one that is absent; or one with the three side by side
    paths: tuple[str | None, ...]
    identity: int = UNKNOWN  # as on disk
    camera: int = UNKNOWN  # from 0
    scene: int = 0
    camera_name: str = field(default="", compare=False, repr=False)  # as on disk

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the images there are, at least one."""
        return tuple(filter(None, self.paths))

    @property
    def modalities(self) -> tuple[str, ...]:
        """Those that it has images of."""
        paths = self.paths if len(self.paths) > 1 else MODALITIES
        return tuple(modality for modality, path in zip(MODALITIES, paths, strict=True) if path)

    def without(self: S, broken: Collection[str]) -> S:
        """With None for these paths, which may be all."""
        return replace(self, paths=tuple(None if path in broken else path for path in self.paths))


@dataclass(frozen=True)
class Reader:
    """Reader of one data set; `layout` and `instead` are parts of error messages."""

    read: Callable[[Path, str], list[Sample]]  # (root, split) → samples, sorted by path
    layout: str  # below DATASETS.ROOT_DIR
    by_scene: bool = False  # the protocol excludes by scene in place of camera (docs/method.md)
    instead: str = ""  # alternative to a missing data set
    labelled: bool = True
    first_camera: int = 1  # its number in the file names
    trained_as: tuple[str, ...] = ()  # further names of the data set in checkpoints
    # DATASETS.ROOT_DIR → folder or table, where that is not the first one of `layout`
    locate: Callable[[Path], Path] | None = None
    # counts by split (reports/data.py)
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def folder_in(self, root: Path) -> Path:
        """Path of the folder, or table, of the data set, which need not exist."""
        return self.locate(root) if self.locate else root / self.layout.split("/")[1]


@dataclass(frozen=True)
class Naming:
    """File names of a data set; `example` and `meaning` are parts of error messages."""

    pattern: re.Pattern  # with the groups identity, camera and optionally scene
    example: str
    meaning: str
    first_camera: int = 1  # its number in the file names

    def sample(self, paths: tuple[str | None, ...]) -> Sample:
        """Sample of these files, by the name of the first; any ending of an image counts as .jpg."""
        match = self.pattern.fullmatch(Path(str(paths[0])).stem + ".jpg")
        if not match:
            raise UserError(
                f"The image {paths[0]} does not follow the data set's names such as {self.example} "
                f"({self.meaning}); rename or remove it."
            )
        parsed = {name: int(value) for name, value in match.groupdict().items()}
        parsed["camera"] -= self.first_camera
        return Sample(paths, **parsed, camera_name=match["camera"])


def existing(folder: Path) -> Path:
    """`folder`, which is there."""
    if not folder.is_dir():
        raise UserError(f"The folder {folder} is {'a file' if folder.exists() else 'missing'}.")
    return folder


def is_folder(place: Path) -> bool:
    """Whether a folder is at a place. Raises `UserError` for a link that leads nowhere, as to a disk that is not mounted."""
    if place.is_symlink() and not place.exists():
        raise UserError(f"The folder {place} is a link that leads nowhere; correct or remove it.")
    return place.is_dir()


def file_key(path: str | os.PathLike) -> tuple[int, int] | str:
    """What all paths and links of one file have in common, and of one folder."""
    try:
        status = os.stat(path)
    except OSError:
        return os.fspath(path)
    return status.st_dev, status.st_ino


def is_hidden(name: str) -> bool:
    """Whether systems hide a file or folder of this name, as macOS's ._x.jpg beside x.jpg."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def image_names(
    folder: Path,
    others: Collection[str] | None = None,
    only: str | None = None,
    parents: tuple = (),
) -> dict[str, str]:
    """Names of the images in a folder by their stems, unordered, of one stem with `only`; with `others` also those in nested
    folders, as paths from `folder`, but for those of these names. Links are followed, but for one to a folder of `parents`,
    those that it lies in; one that leads nowhere counts as an image, which the reader of pixels tells of; a hidden one not."""
    names: dict[str, str] = {}
    parents = (*parents, file_key(existing(folder)))
    for entry in [*os.scandir(folder)]:
        name, (stem, ending) = entry.name, os.path.splitext(entry.name)
        if only not in (None, stem) or (is_hidden(name) and not only):
            continue
        is_link = entry.is_symlink()
        if others is not None and (os.path.isdir(entry) if is_link else entry.is_dir()):
            if name in others or (is_link and file_key(entry) in parents):
                continue
            nested = image_names(folder / name, others, parents=parents)
            names |= {f"{name}/{stem}": f"{name}/{path}" for stem, path in nested.items()}
            continue
        if ending.lower() not in endings() and not (is_link and not os.path.exists(entry)):
            continue
        if (other := names.setdefault(stem, name)) != name:
            raise UserError(
                f"The folder {folder} has both {min(name, other)} and {max(name, other)}, which name the same "
                "image of a triplet; remove one of them."
            )
    return names


@cache
def endings() -> set[str]:
    """Endings of files of the FORMATS, such as ".jpg"."""
    extensions = Image.registered_extensions()
    return {ending for ending, kind in extensions.items() if kind in FORMATS}


def find_triplets(
    places: Mapping[str, Path], others: Collection[str] | None = None, only: str | None = None
) -> dict[str, tuple[str | None, ...]]:
    """Paths of the images of each triplet by their name, sorted by it: those of `image_names` in the folders of the modalities,
    None where a folder has none, or is missing itself."""
    paths: dict[str, dict[str, str]] = {modality: {} for modality in MODALITIES}
    for modality, place in places.items():
        if is_folder(place):
            names = image_names(place, others, only)
            paths[modality] = {name: str(place / path) for name, path in names.items()}
    every = sorted(set().union(*paths.values()))
    return {name: tuple(by_name.get(name) for by_name in paths.values()) for name in every}


def triplet_paths(folder: Path, names: dict[str, str]) -> list[tuple[str | None, ...]]:
    """Paths of the triplets in `folder`, by folder name of each modality, sorted by that of the first; all must be complete."""
    places = {modality: existing(folder) / names[modality] for modality in MODALITIES}
    for modality, place in places.items():
        if not place.is_dir():
            raise UserError(
                f"The folder {place} is missing; DATASETS.NAMES Folder reads data without {modality} images."
            )
    triplets = find_triplets(places)
    for paths in triplets.values():
        if missing := [name for name, path in zip(MODALITIES, paths, strict=True) if not path]:
            there = Path(next(filter(None, paths)))
            raise UserError(
                f"The triplet {there.name} in {folder} has no {' and no '.join(missing)} image: "
                f"{places[missing[0]] / there.name} is missing; add it or remove the triplet's other images such as {there}."
            )
    return sorted(triplets.values(), key=lambda paths: str(paths[0]))


def identity_labels(samples: Iterable[Sample]) -> dict[int, int]:
    """Identity on disk → class label 0 … K-1, in the order of the identities."""
    identities = sorted({sample.identity for sample in samples})
    return {identity: label for label, identity in enumerate(identities)}
