"""Own data without code: DATASETS.NAMES Folder and CSV (docs/own_data.md). A triplet may lack images of some modalities."""

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets.base import SPLITS, UNKNOWN, Reader, Sample
from demo_sdtps.datasets.folders import triplets_in

JUNK = "-1"
"""The identity of images that are no query and no match, as Market-1501 has them; they are left out."""
COLUMNS = ("split", "identity", "camera", *(modality.lower() for modality in MODALITIES))


class TripletRow(NamedTuple):
    """A triplet as it is found, with labels of any text."""

    split: str
    identity: str
    camera: str
    paths: tuple[str | None, ...]


def folder_reader(cfg: CfgNode) -> Reader:
    """Reader of ROOT_DIR/{train,query,gallery}/{RGB,NI,TI} with labels in the names, by DATASETS.FOLDERS and PATTERN; without
    cameras each triplet is a scene of its own."""
    folders = folders_of(cfg)
    pattern, modalities = pattern_of(cfg), cfg.MODEL.MODALITIES
    kinds = (SPLITS, modalities)
    splits, subfolders = (",".join(folders[name] for name in names) for names in kinds)
    has_cameras = "camera" in pattern.groupindex
    read = _reading(lambda root: _rows_of_folders(root, folders, modalities, pattern), has_cameras)
    layout = f"/{{{splits}}}/{{{subfolders}}}"
    return Reader(read, layout, by_scene=not has_cameras, locate=lambda root: root)


def csv_reader(cfg: CfgNode) -> Reader:
    """Reader of the table DATASETS.ROOT_DIR with the columns COLUMNS, whose paths are relative to its folder; without cameras
    each triplet is a scene of its own."""
    has_cameras = "camera" in _columns_of(Path(cfg.DATASETS.ROOT_DIR))
    read = _reading(lambda root: _rows_of_table(root, cfg.MODEL.MODALITIES), has_cameras)
    layout = f", which must be a table with {','.join(COLUMNS)}"
    return Reader(read, layout, by_scene=not has_cameras, locate=lambda root: root)


def folders_of(cfg: CfgNode) -> dict[str, str]:
    """Folder of each split and modality."""
    folders = {name: name for name in (*SPLITS, *MODALITIES)}
    for entry in cfg.DATASETS.FOLDERS:
        name, _, folder = entry.partition("=")
        if name not in folders or not folder:
            raise UserError(
                f"DATASETS.FOLDERS has {entry!r}, but an entry is NAME=FOLDER with one of the names "
                f"{', '.join(folders)}; correct it (docs/own_data.md)."
            )
        folders[name] = folder
    return folders


def pattern_of(cfg: CfgNode) -> re.Pattern:
    """DATASETS.PATTERN."""
    try:
        pattern = re.compile(cfg.DATASETS.PATTERN)
    except re.error as error:
        raise UserError(
            f"DATASETS.PATTERN {cfg.DATASETS.PATTERN!r} is no regular expression ({error}); correct it (docs/own_data.md)."
        ) from None
    if "identity" not in pattern.groupindex:
        raise UserError(
            f"DATASETS.PATTERN {cfg.DATASETS.PATTERN!r} has no group identity; write one such as "
            "(?P<identity>\\d+) (docs/own_data.md)."
        )
    return pattern


def _reading(
    rows: Callable[[Path], list[TripletRow]], has_cameras: bool
) -> Callable[[Path, str], list[Sample]]:
    """A reader's function by the rows of all splits, which the numbers of identities and cameras depend on."""
    rows = cache(rows)

    def read(root: Path, split: str) -> list[Sample]:
        labelled_rows = [row for row in rows(root) if row.identity != JUNK]
        identities = numbers_of(row.identity for row in labelled_rows)
        cameras = numbers_of(row.camera for row in labelled_rows)
        order = {camera: place for place, camera in enumerate(sorted(set(cameras.values())))}
        scenes = {row.paths: number for number, row in enumerate(labelled_rows)}
        return [
            Sample(row.paths, identities[row.identity], order[cameras[row.camera]])
            if has_cameras
            else Sample(row.paths, identities[row.identity], UNKNOWN, scene=scenes[row.paths])
            for row in labelled_rows
            if row.split == split
        ]

    return read


def numbers_of(labels: Iterable[str]) -> dict[str, int]:
    """A number for each label: its own where all are different whole numbers, else its place in the order of all."""
    distinct = sorted(set(labels))
    numbers = {int(label) for label in distinct if label.isdecimal() and len(label) < 19}
    if len(numbers) == len(distinct):
        return {label: int(label) for label in distinct}
    return {label: place for place, label in enumerate(distinct)}


def _rows_of_folders(
    root: Path, folders: Mapping[str, str], modalities: list[str], pattern: re.Pattern
) -> list[TripletRow]:
    rows: list[TripletRow] = []
    for name in modalities:
        if not any((root / folders[split] / folders[name]).is_dir() for split in SPLITS):
            raise UserError(
                f"No split has a folder {folders[name]} of {name} images; name it by DATASETS.FOLDERS {name}=…, "
                f"or leave {name} out of MODEL.MODALITIES."
            )
    for split in SPLITS:
        places = {name: root / folders[split] / folders[name] for name in modalities}
        for triplet in triplets_in(places, set(folders.values())):
            match = pattern.search(triplet.name)
            labels = match.groupdict() if match else {}
            # a pattern without the group camera is of data without cameras
            if not (labels.get("identity") and labels.get("camera", "none")):
                empty = (
                    f", whose group {'camera' if labels.get('identity') else 'identity'} it leaves empty"
                    if match
                    else ""
                )
                raise UserError(
                    f"The image {triplet.files[0]} does not follow DATASETS.PATTERN {pattern.pattern!r}{empty}; rename or "
                    "remove it, or give another pattern, without the group camera where there are none."
                )
            camera = labels.get("camera", "")
            rows.append(TripletRow(split, labels["identity"], camera, triplet.paths))
    return rows


def _columns_of(table: Path) -> Sequence[str]:
    """The columns of a table, all of COLUMNS where there is none."""
    if not table.is_file():
        return COLUMNS
    with _open_table(table) as lines:
        return lines.fieldnames or []


@contextmanager
def _open_table(table: Path) -> Iterator[csv.DictReader]:
    """Context manager: the lines of a table."""
    try:
        with open(table, encoding="utf-8-sig", newline="") as file:
            yield csv.DictReader(file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{table} is no table in UTF-8 ({error}); save it as CSV, UTF-8 (docs/own_data.md)."
        ) from None


def _rows_of_table(table: Path, modalities: list[str]) -> list[TripletRow]:
    rows: list[TripletRow] = []
    if not table.is_file():
        raise UserError(
            f"DATASETS.ROOT_DIR is {table}, but for DATASETS.NAMES CSV it must be a table; give its file."
        )
    with _open_table(table) as lines:
        columns = lines.fieldnames or []
        needed = ["split", "identity", *(modality.lower() for modality in modalities)]
        if missing := [name for name in needed if name not in columns]:
            raise UserError(f"{table} has no column {missing[0]!r}; it needs {', '.join(needed)}.")
        for number, line in enumerate(lines, start=2):
            files = [line[name] if name in needed else None for name in COLUMNS[3:]]
            paths = tuple(str(table.parent / file) if file else None for file in files)
            if absent := [path for path in paths if path and not os.path.isfile(path)]:
                raise UserError(
                    f"Line {number} of {table} names {absent[0]}, which is missing; correct the line or remove it."
                )
            split, identity, camera = (line.get(name, "") for name in COLUMNS[:3])
            if split not in SPLITS or not identity or ("camera" in columns and not camera):
                raise UserError(
                    f"Line {number} of {table} needs a split ({', '.join(SPLITS)}), an identity and, where there is that "
                    "column, a camera; correct it."
                )
            if any(paths):
                rows.append(TripletRow(split, identity, camera, paths))
    return rows
