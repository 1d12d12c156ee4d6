"""Own images without labels: a folder with the subfolders RGB, NI and TI, any of them absent, or of one modality
(docs/retrieval.md)."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets.base import Reader, Sample, endings, find_triplets, image_names

LAYOUT = f"the folders {', '.join(MODALITIES)}, or some of them, with images of equal names"
FLAT = f"where all images of a folder are of one modality, say which by --modality {MODALITIES[0]} (docs/own_data.md)"


@dataclass(frozen=True)
class Triplet(Sample):
    """Images of equal name, but for the ending. `labels` are texts by column, of a table or the groups of a pattern, such as
    what the "camera" is called."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def stamp(self) -> str:
        """What its features depend on: of each file the size in bytes and the times of modification and of change, of its name
        too, in nanoseconds, "-" for a missing one; and the camera, if known."""
        status = (path and os.stat(path) for path in self.paths)
        files = (
            f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}" if stat else "-"
            for stat in status
        )
        return " ".join([*files, *filter(None, [self.labels.get("camera")])])

    def without(self, broken: Collection[str]) -> "Triplet":
        """With None for these paths, which may be all."""
        return replace(self, paths=tuple(None if path in broken else path for path in self.paths))

    def real_paths(self) -> set[str]:
        """Its files, without symbolic links."""
        return {os.path.realpath(path) for path in self.paths if path}


def unlabelled_reader(cfg: CfgNode) -> Reader:
    """Reader of the images of DATASETS.ROOT_DIR, which has no splits; those of a modality whose entry of DATASETS.FOLDERS is
    "." may lie in it."""
    modalities = cfg.MODEL.MODALITIES
    flat = next((name for name in MODALITIES if f"{name}=." in cfg.DATASETS.FOLDERS), None)

    def read(root: Path, split: str) -> list[Sample]:
        return [*read_folder(root, flat, modalities)]

    layout = f"/{{{','.join(modalities)}}}"
    return Reader(read, layout, labelled=False, locate=lambda root: root)


def read_folder(
    folder: Path, flat: str | None = None, modalities: Collection[str] = MODALITIES
) -> list[Triplet]:
    """The triplets of a folder and the folders in it, sorted by name, of these modalities; one without subfolders of
    modalities has images of the modality `flat`."""
    places = {name: folder / name for name in MODALITIES if (folder / name).is_dir()}
    how = ""
    if not places and flat:
        places, how = {flat: folder}, " (--modality)"
    if places and places.keys().isdisjoint(modalities):
        raise UserError(
            f"The images of {folder} are of {', '.join(places)}{how}, but the model reads {', '.join(modalities)} alone "
            "(MODEL.MODALITIES); give others, or a model that reads them."
        )
    read = {name: place for name, place in places.items() if name in modalities}
    triplets = find_triplets(read, MODALITIES)
    if not triplets:
        other = next((f", but {name}" for name in image_names(folder, ()).values()), "")
        raise UserError(
            f"The folder {folder} has no image in {', '.join(modalities)}{other}; give one with {LAYOUT}; {FLAT}."
        )
    return [Triplet(paths, name=name) for name, paths in triplets.items()]


def read_query(
    place: Path, flat: str | None = None, modalities: Collection[str] = MODALITIES
) -> list[Triplet]:
    """The triplets of a folder as `read_folder`, or the one that the image `place`, such as …/RGB/x.jpg, is part of."""
    if not place.exists():
        raise UserError(f"The query {place} is missing; give an image, or a folder with {LAYOUT}.")
    if place.is_dir():
        return read_folder(place, flat, modalities)
    parents = (*place.parents, *place.absolute().parents)
    folder = next((parent for parent in parents if parent.name in MODALITIES), None)
    if folder is None and flat is None:
        raise UserError(
            f"The image {place} lies in none of the folders {', '.join(MODALITIES)}, which tell its modality; move "
            f"it into one of them, or give a folder with them; {FLAT}."
        )
    modality = folder.name if folder else str(flat)
    if modality not in modalities:
        raise UserError(
            f"The query {place} is an image of {modality}, but the model reads {', '.join(modalities)} alone "
            "(MODEL.MODALITIES); give another query, or a model that reads it."
        )
    if place.suffix.lower() not in endings():
        raise UserError(
            f"The query {place} has a name that does not end like that of an image (.jpg, .png, …); convert or "
            "rename it."
        )
    if folder is None:
        paths = tuple(str(place) if name == modality else None for name in MODALITIES)
        return [Triplet(paths, name=place.stem)]
    inside = (place if folder in place.parents else place.absolute()).relative_to(folder)
    siblings = {name: folder.parent / name / inside.parent for name in modalities}
    (paths,) = find_triplets(siblings, only=place.stem).values()
    return [Triplet(paths, name=inside.with_suffix("").as_posix())]


def check_modality(flat: str | None, *places: Path) -> None:
    """Raise `UserError` where --modality tells of nothing: all places have folders of modalities, or lie in one."""
    known = [
        any((place / name).is_dir() for name in MODALITIES)
        if place.is_dir()
        else not {*place.absolute().parts[:-1]}.isdisjoint(MODALITIES)
        for place in places
    ]
    if flat and all(known):
        raise UserError(
            f"--modality {flat} tells what a folder without the folders {', '.join(MODALITIES)} has, but {places[-1]} has "
            "them, or lies in one; leave it out, or name the folder of that modality."
        )
