"""What a data set is: samples with identity and camera, and the checks that every reader shares (docs/data.md)."""
import os
import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import printable

SPLITS = ("train", "query", "gallery")

VIS_NI_TH = {"RGB": "vis", "NI": "ni", "TI": "th"}
"""The modalities' folders in the MSV data sets of vehicles (MSVR310, MSVWild863)."""


@dataclass(frozen=True)
class Sample:
    """One triplet: its images, identity as named on disk, camera from 0, scene.

    `paths` has one path per modality (RGB, NI, TI), or a single one: an image that holds the three side by side.
    """

    paths: tuple[str, ...]
    identity: int
    camera: int
    scene: int = 0


@dataclass(frozen=True)
class Reader:
    """How one data set lies on disk: `read(root, split)` gives the samples of a split, sorted by path.

    `layout` is shown to the user when something is missing, and so is `instead`, another way out where the data set as a
    whole is; `by_scene` chooses the protocol that drops gallery samples of the query's identity and scene rather than
    identity and camera (docs/method.md); weights may name the data set that they were trained on by one of `trained_as` too.
    """

    read: Callable[[Path, str], list[Sample]]
    layout: str
    by_scene: bool = False
    instead: str = ""
    trained_as: tuple[str, ...] = ()
    place: Callable[[Path], Path] | None = None
    """From DATASETS.ROOT_DIR to the data set's own folder, where that is not always `folder` in it."""

    @property
    def folder(self) -> str:
        """Name of the data set's own folder in DATASETS.ROOT_DIR."""
        return self.layout.split("/")[0]

    def folder_in(self, root: Path) -> Path:
        """The data set's own folder, whether it is there or not."""
        return self.place(root) if self.place else root / self.folder


@dataclass(frozen=True)
class Naming:
    """What an image's name says: `pattern` has the groups identity, camera and, where there are scenes, scene.

    `example` and `meaning` are shown to the user for a name that does not match; `first_camera` is the number that the
    data set gives its first camera.
    """

    pattern: re.Pattern
    example: str
    meaning: str
    first_camera: int = 1

    def sample(self, paths: tuple[str, ...]) -> Sample:
        """The sample of these images, by the name of the first. Raises `UserError` for a name that does not match."""
        match = self.pattern.fullmatch(Path(paths[0]).name)
        if not match:
            raise UserError(f"The image {printable(paths[0])} does not follow the data set's names such as {self.example} "
                            f"({self.meaning}); rename or remove it.")
        said = {name: int(value) for name, value in match.groupdict().items()}
        said["camera"] -= self.first_camera
        return Sample(paths, **said)


def existing(folder: Path) -> Path:
    """The folder itself. Raises `UserError` where there is none, which says where it seems to be instead."""
    if not folder.is_dir():
        raise UserError(f"The folder {folder} is missing{found_instead(folder)}.")
    return folder


def found_instead(folder: Path) -> str:
    """For a sentence: what there is in place of a missing folder, in other letters or one level too deep; "" for nothing."""
    # The first folder on the way that is missing.
    while not folder.parent.is_dir() and folder.parent != folder:
        folder = folder.parent
    if renamed := folder_in_other_letters(folder.parent, folder.name):
        return f", but there is {renamed}: rename it to {folder.name}"
    for between in subfolders(folder.parent):
        if deeper := folder_in_other_letters(between, folder.name):
            return f", but there is {deeper}, one level too deep: move what is in {between} to {folder.parent}"
    return ""


def folder_in_other_letters(parent: Path, name: str) -> Path | None:
    """The folder in `parent` whose name is `name` but for capital and small letters."""
    return next((folder for folder in subfolders(parent) if folder.name.casefold() == name.casefold()), None)


def subfolders(parent: Path) -> list[Path]:
    """Sorted; none where `parent` cannot be read."""
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return []


def image_names(folder: Path) -> Set[str]:
    """Names of the images in a folder, in no order. Raises `UserError` where there is no such folder, or one is no file."""
    try:
        with os.scandir(existing(folder)) as entries:
            found = {entry.name: entry.is_file(follow_symlinks=False) or os.path.isfile(entry)
                     for entry in entries if entry.name.endswith(".jpg")}
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read ({error.strerror}).") from None
    # Found here, and not on the way: opening a pipe would wait for ever.
    for name, is_file in found.items():
        if not is_file:
            raise UserError(f"The image {folder / name} is no file (a folder, or a link to nothing?); replace it or remove "
                            "its triplet.")
    return found.keys()


def triplet_paths(folder: Path, names: dict[str, str]) -> list[tuple[str, ...]]:
    """Paths of all triplets in `folder`, whose images have one name in one folder per modality; sorted.

    `names` maps each modality to its folder's name. Raises `UserError` for a modality that is missing, as a whole or
    for one image.
    """
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
    """Identity on disk → class label 0 … K-1, in sorted order."""
    return {identity: label for label, identity in enumerate(sorted({sample.identity for sample in samples}))}
