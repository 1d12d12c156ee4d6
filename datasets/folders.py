"""Own images without labels: a folder with the subfolders RGB, NI and TI, any of them absent (docs/search.md)."""
import os
from dataclasses import dataclass
from pathlib import Path

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets.base import existing, image_names

LAYOUT = f"the folders {', '.join(MODALITIES)}, or some of them, with images of equal names"


@dataclass(frozen=True)
class Triplet:
    """Images of equal name, but for the ending; `paths` of RGB, NI and TI has None for each missing one, but not only None."""

    name: str
    paths: tuple[str | None, ...]

    @property
    def file(self) -> str:
        """The first of its files."""
        return next(path for path in self.paths if path is not None)

    def stamp(self) -> str:
        """Sizes in bytes and times of modification in nanoseconds of its files, "-" for a missing one."""
        status = (path and os.stat(path) for path in self.paths)
        return " ".join(f"{found.st_size}:{found.st_mtime_ns}" if found else "-" for found in status)


def read_folder(folder: Path) -> list[Triplet]:
    """The triplets of a folder, sorted by name. Raises `UserError` where it has no subfolder of a modality, or no image."""
    found = _images(existing(folder))
    names = sorted({name for images in found.values() for name in images})
    if not names:
        raise UserError(f"The folder {folder} has no image in {', '.join(MODALITIES)}; give one with {LAYOUT}.")
    return [_triplet(folder, name, found) for name in names]


def read_query(place: Path) -> list[Triplet]:
    """The triplets of a folder, or the one that the image `place`, such as …/RGB/x.jpg, is part of. Raises `UserError`."""
    if not place.exists():
        raise UserError(f"The query {place} is missing; give an image, or a folder with {LAYOUT}.")
    if place.is_dir():
        return read_folder(place)
    parent = place.parent if place.parent.name else place.absolute().parent
    if parent.name not in MODALITIES:
        raise UserError(f"The image {place} lies in none of the folders {', '.join(MODALITIES)}, which tell its modality; move "
                        "it into one of them, or give a folder with them.")
    folder = parent.parent
    found = _images(folder)
    if place.name not in found[parent.name].values():
        raise UserError(f"The query {place} has a name that does not end like that of an image (.jpg, .png, …); convert or "
                        "rename it.")
    return [_triplet(folder, place.stem, found)]


def _images(folder: Path) -> dict[str, dict[str, str]]:
    """The file names of each modality that has a folder, by their stems. Raises `UserError` as `image_names`."""
    return {modality: image_names(folder / modality) for modality in MODALITIES if (folder / modality).is_dir()}


def _triplet(folder: Path, name: str, found: dict[str, dict[str, str]]) -> Triplet:
    return Triplet(name, tuple(str(folder / modality / found[modality][name]) if name in found.get(modality, ()) else None
                               for modality in MODALITIES))
