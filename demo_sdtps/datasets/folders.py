"""Own images without labels: a folder with subfolders RGB, NI and TI, or of one modality (docs/search.md)."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets import base

LAYOUT = f"the folders {', '.join(MODALITIES)}, or some of them, with images of equal names"
FLAT = f"where all images of a folder are of one modality, say which by --modality {MODALITIES[0]} (docs/own_data.md)"


@dataclass(frozen=True)
class Triplet(base.Sample):
    """Images of equal name, but for the ending. `labels` are texts by column of a table or group of a pattern: "camera"."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def stamp(self) -> str:
        """What its features depend on: of each file the size in bytes and the times of modification and of change, of its name
        too, in nanoseconds, "-" for a missing one, "?" for a link that leads nowhere; and the camera, if known."""
        files = []
        for path in self.paths:
            try:
                status = path and os.stat(path)
            except OSError:
                files.append("?")
                continue
            times = status and (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            files.append(":".join(map(str, times)) if times else "-")
        return " ".join([*files, *filter(None, [self.labels.get("camera")])])

    def file_keys(self) -> set:
        """`file_key` of each of its files."""
        return {*map(base.file_key, self.files)}


@dataclass(frozen=True)
class Folders:
    """Where the images of the modalities are: the modality `by_name` of a folder, those of DATASETS.FOLDERS before the
    modalities' own; and that of images in a place without such a folder, `flat`."""

    by_name: Mapping[str, str]
    flat: str | None = None

    def places(self, root: Path) -> dict[str, Path]:
        """The folder of each modality that there is one of in `root`."""
        places: dict[str, Path] = {}
        for name, modality in self.by_name.items():
            if base.is_folder(root / name):
                places.setdefault(modality, root / name)
        return places

    def above(self, path: Path) -> tuple[Path, Path, str] | None:
        """The nearest folder of a modality that a file lies in, the folder that this one is in, and the modality."""
        for parent in (*path.parents, *path.absolute().parents):
            for name, modality in self.by_name.items():
                parts = Path(name).parts
                if parent.parts[-len(parts) :] == parts:
                    return parent, parent.parents[len(parts) - 1], modality
        return None


def make_folders(entries: Sequence[str] = ()) -> Folders:
    """Of the entries of DATASETS.FOLDERS, such as RGB=visible, or RGB=. for images without a folder."""
    named = (entry.partition("=")[::2] for entry in entries)
    folders = {folder: name for name, folder in named if name in MODALITIES}
    flat = folders.pop(".", None)
    return Folders(folders | {name: name for name in MODALITIES if name not in folders}, flat)


PLAIN = make_folders()


def read_folders(cfg: CfgNode) -> dict[str, str]:
    """Folder of each split and modality, by DATASETS.FOLDERS."""
    folders = {name: name for name in (*base.SPLITS, *MODALITIES)}
    for entry in cfg.DATASETS.FOLDERS:
        name, _, folder = entry.partition("=")
        if name not in folders or not folder:
            raise UserError(
                f"DATASETS.FOLDERS has {entry!r}, but an entry is NAME=FOLDER with one of the names "
                f"{', '.join(folders)}; correct it (docs/own_data.md)."
            )
        folders[name] = folder
    names = [entry.partition("=")[0] for entry in cfg.DATASETS.FOLDERS]
    places = [folders[name] for name in cfg.MODEL.MODALITIES]
    for what, each in (("names", names), ("gives to two of MODEL.MODALITIES", places)):
        if twice := [one for one in each if each.count(one) > 1]:
            raise UserError(
                f"DATASETS.FOLDERS {what} {twice[0]}, twice; give each once (docs/own_data.md)."
            )
    return folders


def image_folders(cfg: CfgNode) -> Folders:
    """Where images without labels are, by DATASETS.FOLDERS."""
    read_folders(cfg)  # refuses a wrong entry
    return make_folders(cfg.DATASETS.FOLDERS)


def unlabelled_reader(cfg: CfgNode) -> base.Reader:
    """Reader of the images of DATASETS.ROOT_DIR, which has no splits, by DATASETS.FOLDERS."""
    modalities, folders = cfg.MODEL.MODALITIES, image_folders(cfg)

    def read(root: Path, split: str) -> list[base.Sample]:
        return [*read_folder(root, folders, modalities)]

    layout = f"/{{{','.join(modalities)}}}"
    return base.Reader(read, layout, labelled=False, locate=lambda root: root)


def read_folder(
    folder: Path, folders: Folders = PLAIN, modalities: Collection[str] = MODALITIES
) -> list[Triplet]:
    """The triplets of a folder and the folders in it, sorted by name, of these modalities; one without subfolders of
    modalities has images of the modality `folders.flat`."""
    places, how = folders.places(folder), ""
    if not places and folders.flat:
        places, how = {folders.flat: folder}, " (--modality or DATASETS.FOLDERS)"
    if places and places.keys().isdisjoint(modalities):
        raise UserError(
            f"The images of {folder} are of {', '.join(places)}{how}, but the model reads {', '.join(modalities)} alone "
            "(MODEL.MODALITIES); give others, or a model that reads them."
        )
    read = {name: place for name, place in places.items() if name in modalities}
    triplets = base.find_triplets(read, folders.by_name)
    if not triplets:
        other = next((f", but {name}" for name in base.image_names(folder, ()).values()), "")
        raise UserError(
            f"The folder {folder} has no image in {', '.join(modalities)}{other}; give one with {LAYOUT}; {FLAT}."
        )
    return [Triplet(paths, name=name) for name, paths in triplets.items()]


def read_query(
    place: Path, folders: Folders = PLAIN, modalities: Collection[str] = MODALITIES
) -> list[Triplet]:
    """The triplets of a folder as `read_folder`, or the one that the image `place`, such as …/RGB/x.jpg, is part of."""
    if not place.exists():
        raise UserError(f"The query {place} is missing; give an image, or a folder with {LAYOUT}.")
    if place.is_dir():
        return read_folder(place, folders, modalities)
    above = folders.above(place)
    if above is None and folders.flat is None:
        raise UserError(
            f"The image {place} lies in none of the folders {', '.join(folders.by_name)}, which tell its modality; move "
            f"it into one of them, or give a folder with them; {FLAT}."
        )
    folder, root, modality = above or (place.parent, place.parent, str(folders.flat))
    if modality not in modalities:
        raise UserError(
            f"The query {place} is an image of {modality}, but the model reads {', '.join(modalities)} alone "
            "(MODEL.MODALITIES); give another query, or a model that reads it."
        )
    if place.suffix.lower() not in base.endings():
        raise UserError(
            f"The query {place} has a name that does not end like that of an image (.jpg, .png, …); convert or rename it."
        )
    if above is None:
        paths = tuple(str(place) if name == modality else None for name in MODALITIES)
        return [Triplet(paths, name=place.stem)]
    inside = (place if folder in place.parents else place.absolute()).relative_to(folder)
    places = folders.places(root) | {modality: folder}
    siblings = {name: places[name] / inside.parent for name in modalities if name in places}
    (paths,) = base.find_triplets(siblings, only=place.stem).values()
    return [Triplet(paths, name=inside.with_suffix("").as_posix())]


def check_modality(flat: str | None, folders: Folders, *places: Path) -> None:
    """Raise `UserError` where --modality tells of nothing: all places have folders of modalities, or lie in one."""
    known = [
        bool(folders.places(place)) if place.is_dir() else folders.above(place) is not None
        for place in places
    ]
    if flat and all(known):
        raise UserError(
            f"--modality {flat} tells what a folder without the folders {', '.join(folders.by_name)} has, but {places[-1]} has "
            "them, or lies in one; leave it out, or name the folder of that modality."
        )
