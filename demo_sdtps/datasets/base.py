"""Samples, readers of data sets, and the listing of images in folders, which all readers share (docs/train.md)."""

import logging
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from PIL import Image

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import plain

SPLITS = TRAIN, QUERY, GALLERY = ("train", "query", "gallery")
VALIDATION = "validation"  # the identities that are left out of train (DATASETS.VALIDATION)

AVIF = ["AVIF"] if find_spec("PIL._avif") else []
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", *AVIF)
"""Accepted formats of images, whatever their ending. Pillow has others; for EPS it executes Ghostscript."""

UNKNOWN = -1  # identity and camera of images without labels

# folders in which systems keep copies of images, and files beside images
SYSTEM = ("@eaDir", "#recycle", "$RECYCLE.BIN", "Thumbs.db", "desktop.ini")
logger = logging.getLogger(__name__)

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
        """The sample with None for these paths, which may be all."""
        return replace(self, paths=tuple(None if path in broken else path for path in self.paths))


@dataclass(frozen=True)
class Reader:
    """Reader of one data set; `layout` is a part of error messages."""

    read: Callable[[Path, str], list[Sample]]  # (root, split) → samples, sorted by path
    layout: str  # below DATASETS.ROOT_DIR
    by_scene: bool = False  # the protocol excludes by scene in place of camera (docs/method.md)
    labelled: bool = True
    first_camera: int = 1  # its number in the file names
    # DATASETS.ROOT_DIR → folder or table, where that is not the first one of `layout`
    locate: Callable[[Path], Path] | None = None
    # counts by split (reports/data.py)
    published: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def folder_in(self, root: Path) -> Path:
        """Path of the folder, or table, of the data set, which need not exist."""
        return self.locate(root) if self.locate else root / self.layout.split("/")[1]


@dataclass(frozen=True)
class Naming:
    """File names of a data set, such as `example`."""

    pattern: re.Pattern  # with the groups identity, camera and optionally scene
    example: str
    first_camera: int = 1  # its number in the file names

    def sample(self, paths: tuple[str | None, ...]) -> Sample:
        """Sample of these files, by the name of the first; any ending of an image counts as .jpg."""
        match = self.pattern.fullmatch(Path(str(paths[0])).stem + ".jpg")
        if not match:
            raise UserError(
                f"The image {paths[0]} does not follow the data set's names such as {self.example} (docs/train.md); rename or "
                "remove it."
            )
        labels = {name: int(value) for name, value in match.groupdict().items()}
        labels["camera"] -= self.first_camera
        return Sample(paths, **labels, camera_name=match["camera"])


def existing(folder: Path) -> Path:
    """The folder, which must be there."""
    if not folder.is_dir():
        raise UserError(f"The folder {folder} is missing.")
    return folder


def file_key(path: str) -> tuple[int, int] | str:
    """What all paths and links of one file have in common."""
    try:
        status = os.stat(path)
    except OSError:
        return path
    return status.st_dev, status.st_ino


def existing_path(folder: Path, name: str) -> str:
    """The path below a folder by a name, or by that in another form of Unicode, as macOS writes it, if there is that one."""
    forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD")]
    paths = [str(folder / form) for form in (name, *forms)]
    return next(filter(os.path.lexists, paths), paths[0])


def is_hidden(name: str) -> bool:
    """Whether systems hide a file or folder of this name, as macOS's ._x.jpg beside x.jpg."""
    return name.startswith(".") or name in SYSTEM


def image_names(folder: Path, others: Collection[str] | None = None) -> dict[str, str]:
    """Paths of the images below a folder by the same, as `plain` text without their endings, unordered; with `others` also
    those in nested folders, but for folders of these names. Hidden files are left out, and, with a warning, those of other
    formats. Links are followed, but to a folder they lie in; one to nowhere is an image, which the reader of pixels names."""
    names: dict[str, str] = {}
    left: list[str] = []
    ends = tuple(f"/{other}" for other in others or ())

    def fail(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(existing(folder), onerror=fail, followlinks=True):
        folders[:] = [
            name
            for name in folders
            for inner in [Path(place, name)]
            if others is not None and not (is_hidden(name) or inner.as_posix().endswith(ends))
            # no link to a folder that it lies in
            if not (inner.is_symlink() and inner.parent.resolve().is_relative_to(inner.resolve()))
        ]
        for name in (each for each in files if not is_hidden(each)):
            path = Path(place, name).relative_to(folder).as_posix()
            stem, ending = os.path.splitext(path)
            if ending.lower() not in endings() and os.path.exists(folder / path):
                left.append(ending or name)
            elif (other := names.setdefault(plain(stem), path)) != path:
                raise UserError(
                    f"The folder {folder} has both {min(path, other)} and {max(path, other)}, which name the same "
                    "image of a triplet; remove one of them."
                )
    if left:
        text = "%s: %d files are left out, which are no images of a format that is read (%s)"
        logger.warning(text, folder, len(left), ", ".join(sorted({*left})))
    return names


@cache
def endings() -> set[str]:
    """Endings of files of the FORMATS, such as ".jpg"."""
    extensions = Image.registered_extensions()
    return {ending for ending, kind in extensions.items() if kind in FORMATS}


def find_triplets(
    places: Mapping[str, Path], others: Collection[str] | None = None
) -> dict[str, tuple[str | None, ...]]:
    """Paths of each triplet by its name, sorted: those of `image_names` in the modalities' folders, None for a missing one."""
    paths: dict[str, dict[str, str]] = {}
    for modality, place in places.items():
        for name, path in image_names(place, others).items() if place.is_dir() else ():
            paths.setdefault(name, {})[modality] = str(place / path)
    return {name: tuple(map(paths[name].get, MODALITIES)) for name in sorted(paths)}


def triplet_paths(folder: Path, names: Mapping[str, str]) -> list[tuple[str | None, ...]]:
    """Paths of the triplets in `folder`, by folder name of each modality, sorted by that of the first; all must be complete."""
    places = {name: existing(folder / names[name]) for name in MODALITIES}
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
