"""Own images without labels: a folder with subfolders RGB, NI and TI, or of one modality (docs/search.md)."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import plain
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
        too, in nanoseconds, "-" for a missing one, "?" for a link that leads nowhere."""
        files = []
        for path in self.paths:
            try:
                status = path and os.stat(path)
            except OSError:
                files.append("?")
                continue
            times = status and (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            files.append(":".join(map(str, times)) if times else "-")
        return " ".join(files)

    def file_keys(self) -> set:
        """`file_key` of each of its files."""
        return {*map(base.file_key, self.files)}


Folders = dict[str, str]
"""The folder of each split and modality, "." for that of images without one; a modality's own name stands for it too."""
PLAIN: Folders = {name: name for name in (*base.SPLITS, *MODALITIES)}


def read_folders(cfg: CfgNode) -> Folders:
    """Folder of each split and modality, by DATASETS.FOLDERS."""
    folders = dict(PLAIN)
    for entry in cfg.DATASETS.FOLDERS:
        name, _, folder = entry.partition("=")
        if folders.get(name) != name or not folder:
            raise UserError(
                f"DATASETS.FOLDERS has {entry!r}, but an entry is NAME=FOLDER, and one alone for each of the names "
                f"{', '.join(folders)}; correct it (docs/own_data.md)."
            )
        folders[name] = Path(folder).as_posix()
    return folders


def by_folder(folders: Folders) -> dict[str, str]:
    """The modality of each name of a folder, those of `folders` first."""
    named = {folder: name for name, folder in folders.items() if name in MODALITIES}
    return named | {name: name for name in MODALITIES if name not in named}


def find_places(root: Path, names: Folders) -> dict[str, Path]:
    """The folder of each modality that there is one of in `root`; without any, `root` itself where a modality has no folder."""
    pairs = reversed(names.items())  # those of `read_folders` win
    places = {m: root / name for name, m in pairs if name != "." and (root / name).is_dir()}
    return {names["."]: root} if not places and "." in names else places


def find_above(path: Path, names: Folders) -> tuple[Path, Path, str]:
    """The nearest folder of a modality above a file, the one that it is in, and the modality. Raises `UserError` for none."""
    for parent in path.absolute().parents:
        for name, modality in names.items():
            parts = Path(name).parts
            if parts and parent.parts[-len(parts) :] == parts:
                return parent, parent.parents[len(parts) - 1], modality
    if "." not in names:
        raise UserError(
            f"The image {path} lies in none of the folders {', '.join(names)}, which tell its modality; move "
            f"it into one of them, or give a folder with them; {FLAT}."
        )
    return path.absolute().parent, path.absolute().parent, names["."]


def unlabelled_reader(cfg: CfgNode) -> base.Reader:
    """Reader of the images of DATASETS.ROOT_DIR, which has no splits, by DATASETS.FOLDERS."""
    modalities, folders = cfg.MODEL.MODALITIES, read_folders(cfg)

    def read(root: Path, split: str) -> list[base.Sample]:
        return [*read_folder(root, folders, modalities)]

    layout = f"/{{{','.join(modalities)}}}"
    return base.Reader(read, layout, labelled=False, locate=lambda root: root)


def read_folder(
    folder: Path, folders: Folders = PLAIN, modalities: Collection[str] = MODALITIES
) -> list[Triplet]:
    """The triplets of a folder and of those in it, sorted by name; without folders of modalities, images of that of "."."""
    names = by_folder(folders)
    places = find_places(base.existing(folder), names)
    chosen = {name: place for name, place in places.items() if name in modalities}
    triplets = base.find_triplets(chosen, names if folder in chosen.values() else ())
    if not triplets:
        raise UserError(
            f"The folder {folder} has no image in {', '.join(modalities)} (MODEL.MODALITIES), but folders of "
            f"{', '.join(places) or 'no modality'}; give one with {LAYOUT}; {FLAT}."
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
    names = by_folder(folders)
    folder, root, modality = find_above(place, names)
    if modality not in modalities:
        raise UserError(
            f"The query {place} is an image of {modality}, but the model reads {', '.join(modalities)} alone "
            "(MODEL.MODALITIES); give another query, or a model that reads it."
        )
    inside = place.absolute().relative_to(folder)
    paths, stem = {modality: str(folder / inside)}, plain(place.stem)
    for name, other in find_places(root, names).items():
        there = Path(base.existing_path(other, str(inside.parent)))
        siblings = sorted(path for path in there.glob("*.*") if plain(path.stem) == stem)
        images = [str(path) for path in siblings if path.suffix.lower() in base.endings()]
        if images and name in modalities:
            paths.setdefault(name, images[0])
    name = plain(inside.with_suffix("").as_posix())
    return [Triplet(tuple(map(paths.get, MODALITIES)), name=name)]
