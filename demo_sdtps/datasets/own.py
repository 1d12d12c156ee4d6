"""Own data without code: DATASETS.NAMES Folder and CSV (docs/own_data.md). A triplet may lack images of some modalities."""

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets import base
from demo_sdtps.datasets.folders import (
    PLAIN,
    Folders,
    Triplet,
    read_folder,
    read_folders,
    read_query,
)
from demo_sdtps.datasets.labels import compile_pattern, name_labels, number_labels, read_table

logger = logging.getLogger(__name__)
JUNK = "-1"
"""The identity of images that are no query and no match, as Market-1501 has them; they are left out."""
TABLE = ".csv"
COLUMNS = ("split", "identity", "camera", *(modality.lower() for modality in MODALITIES))
TABLE_COLUMNS = ("split", *COLUMNS[3:])  # those that are no labels of a triplet


class TripletRow(NamedTuple):
    """A triplet as it is on disk, with labels of any text."""

    split: str
    identity: str
    camera: str
    paths: tuple[str | None, ...]


def folder_reader(cfg: CfgNode) -> base.Reader:
    """Reader of ROOT_DIR/{train,query,gallery}/{RGB,NI,TI} with labels in the names, by DATASETS.FOLDERS and PATTERN."""
    root, folders, modalities = Path(cfg.DATASETS.ROOT_DIR), read_folders(cfg), cfg.MODEL.MODALITIES
    pattern = compile_pattern(cfg)
    required = [name for name in ("identity", "camera") if name in pattern.groupindex]
    splits = ",".join(folders[name] for name in base.SPLITS)
    subfolders = ",".join(folders[name] for name in modalities)

    def rows() -> Iterator[TripletRow]:
        roots = {split: root / folders[split] for split in base.SPLITS}
        places = {s: {name: top / folders[name] for name in modalities} for s, top in roots.items()}
        there = {n for n in modalities if any(base.is_folder(each[n]) for each in places.values())}
        wanted = {name: f"folder {folders[name]}" for name in modalities}
        _check_absent(wanted, there, f"the splits of {root}")
        for split in base.SPLITS:
            triplets = base.find_triplets(places[split], set(folders.values()))
            for stem, paths in triplets.items():
                file = next(filter(None, paths))
                labels = name_labels(pattern, stem, file)
                if empty := [name for name in required if name not in labels]:
                    why = f", whose group {empty[0]} it leaves empty" if labels else ""
                    raise UserError(
                        f"The image {file} does not follow DATASETS.PATTERN {pattern.pattern!r}{why}; rename "
                        "or remove it, or give another pattern, without the group camera where there are none."
                    )
                yield TripletRow(split, labels["identity"], labels.get("camera", ""), paths)

    return _make_reader(rows, "camera" in required, f"/{{{splits}}}/{{{subfolders}}}")


def csv_reader(cfg: CfgNode) -> base.Reader:
    """Reader of the table DATASETS.ROOT_DIR with the columns COLUMNS, whose paths are relative to its folder."""
    table, modalities = Path(cfg.DATASETS.ROOT_DIR), cfg.MODEL.MODALITIES
    columns, lines = read_table(table) if table.is_file() else (COLUMNS, {})

    def rows() -> Iterator[TripletRow]:
        if not table.is_file():
            raise UserError(
                f"DATASETS.ROOT_DIR is {table}, but for DATASETS.NAMES CSV it must be a table; give its file."
            )
        if missing := [name for name in COLUMNS[:2] if name not in columns]:
            needed = ", ".join([*COLUMNS[:2], *(name.lower() for name in modalities)])
            raise UserError(f"{table} has no column {missing[0]!r}; it needs {needed}.")
        images = {name: f"column {name.lower()}" for name in modalities}
        _check_absent(images, {name for name in modalities if name.lower() in columns}, str(table))
        for number, line in lines.items():
            paths = _line_paths(table, number, line, modalities)
            split, identity, camera = (line.get(name, "") for name in COLUMNS[:3])
            if split not in base.SPLITS or not identity or ("camera" in columns and not camera):
                raise UserError(
                    f"Line {number} of {table} needs a split ({', '.join(base.SPLITS)}), an identity and, where there is that "
                    "column, a camera; correct it."
                )
            if any(paths):
                yield TripletRow(split, identity, camera, paths)

    layout = f", which must be a table with {','.join(COLUMNS)}"
    return _make_reader(rows, "camera" in columns, layout)


def read_triplets(
    place: Path,
    split: str,
    modalities: Collection[str],
    *,
    folders: Folders = PLAIN,
    pattern: re.Pattern | None = None,
    camera: str | None = None,
) -> list[Triplet]:
    """The gallery or the query of a search, of these modalities: of a folder or an image as `read_query`, or of a table as
    `csv_reader`, which needs no labels; one with a column split has those of `split`, and other columns are labels. Named
    groups of the `pattern` in the names are labels too; `camera` is that of triplets without one."""
    if place.suffix.lower() == TABLE and place.is_file():
        triplets = _table_triplets(place, split, modalities)
    elif split == base.QUERY:
        triplets = read_query(place, folders, modalities)
    else:
        triplets = read_folder(place, folders, modalities)
    names = [name_labels(pattern, one.name, one.files[0]) if pattern else {} for one in triplets]
    if pattern and split != base.QUERY and not any(names):
        raise UserError(
            f"The pattern {pattern.pattern!r} is in no name of {place}, such as {triplets[0].name}; correct it."
        )
    default, pairs = {"camera": camera} if camera else {}, zip(triplets, names, strict=True)
    return [replace(one, labels={**default, **one.labels, **labels}) for one, labels in pairs]


def _table_triplets(table: Path, split: str, modalities: Collection[str]) -> list[Triplet]:
    """The triplets of a table, whose names are their first paths in it."""
    columns, lines = read_table(table)
    images = [modality.lower() for modality in modalities if modality.lower() in columns]
    if not images:
        raise UserError(
            f"{table} has no column of images; it needs {' or '.join(modality.lower() for modality in modalities)}."
        )
    triplets: dict[str, Triplet] = {}
    for number, line in lines.items():
        paths = _line_paths(table, number, line, modalities)
        if not any(paths) or line.get("split", split) != split:
            continue
        name = next(line[image] for image in images if line[image])
        labels = {each: line[each] for each in columns if each not in TABLE_COLUMNS and line[each]}
        if name in triplets:
            raise UserError(
                f"Line {number} of {table} names {name} again; remove one of the lines."
            )
        triplets[name] = Triplet(paths, name=name, labels=labels)
    if not triplets:
        raise UserError(
            f"{table} has no images of the split {split}; add some, or give another table."
        )
    return [triplets[name] for name in sorted(triplets)]


def _make_reader(
    read_rows: Callable[[], Iterator[TripletRow]], has_cameras: bool, layout: str
) -> base.Reader:
    """Reader of the rows of all splits, on which the numbers of identities and cameras depend. Without cameras those of
    `number_scenes` take their place."""

    @cache
    def checked_rows() -> list[TripletRow]:
        rows = [row for row in read_rows() if row.identity != JUNK]
        _check_labels(rows)
        return rows

    def read(root: Path, split: str) -> list[base.Sample]:
        rows = checked_rows()
        identities = number_labels(row.identity for row in rows)
        cameras = number_labels(row.camera for row in rows)
        order = {camera: place for place, camera in enumerate(sorted(set(cameras.values())))}
        scenes = number_scenes([row.paths for row in rows])
        return [
            base.Sample(
                row.paths,
                identities[row.identity],
                order[cameras[row.camera]],
                camera_name=row.camera,
            )
            if has_cameras
            else base.Sample(row.paths, identities[row.identity], scene=scene)
            for row, scene in zip(rows, scenes, strict=True)
            if row.split == split
        ]

    return base.Reader(read, layout, by_scene=not has_cameras, locate=lambda root: root)


def _check_labels(rows: Iterable[TripletRow]) -> None:
    """Warn of a file, by whatever links, with two identities or cameras. Raises `UserError` for one with two identities in
    training, whose loss would both draw it to itself and push it away."""
    first: dict[object, TripletRow] = {}
    texts = []
    for row in rows:
        for path in filter(None, row.paths):
            before = first.setdefault(base.file_key(path), row)
            for label in ("identity", "camera"):
                labels = getattr(before, label), getattr(row, label)
                if labels[0] == labels[1]:
                    continue
                text = f"the image {path} has the {label} {labels[0]}, and {labels[1]} too"
                if label == "identity" and before.split == row.split == base.SPLITS[0]:
                    raise UserError(f"In training {text}; correct one of them, or remove both.")
                texts.append(text)
    if texts:
        _warn(f"WARNING: {texts[0]} (files like it: {len(texts)}); correct the labels.")


def number_scenes(triplets: Sequence[tuple[str | None, ...]]) -> list[int]:
    """A number for each triplet, by its paths; those that have a file in common, by whatever links, have one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers: dict[object, int] = {}
    edges = [
        (row, numbers.setdefault(base.file_key(path), len(triplets) + len(numbers)))
        for row, paths in enumerate(triplets)
        for path in filter(None, paths)
    ]
    size = len(triplets) + len(numbers)
    places = np.array(edges, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges)), (places[0], places[1])), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(triplets)].tolist()


def _check_absent(places: Mapping[str, str], there: Collection[str], where: str) -> None:
    """Warn of the modalities whose place, a folder or a column, is not there. Raises `UserError` where none is."""
    absent = {name: place for name, place in places.items() if name not in there}
    if not there:
        raise UserError(
            f"There is no {' and no '.join(absent.values())} in {where}; give the folder, or table, of the images."
        )
    for name, place in absent.items():
        _warn(f"WARNING: there is no {place} in {where}: {name} counts as missing everywhere.")


@cache
def _warn(text: str) -> None:
    """Once, though a command may read its data several times, and in several processes."""
    if os.environ.get("RANK", "0") == "0":
        logger.warning(text)


def _line_paths(
    table: Path, number: int, line: Mapping[str, str], modalities: Collection[str]
) -> tuple[str | None, ...]:
    """Paths of the images of these modalities in a line, in the order of MODALITIES."""
    files = [line.get(name.lower()) if name in modalities else None for name in MODALITIES]
    paths = tuple(str(table.parent / file) if file else None for file in files)
    # a link that leads nowhere is left to the reader of pixels, as in a folder
    if absent := [path for path in paths if path and not os.path.lexists(path)]:
        raise UserError(
            f"Line {number} of {table} names {absent[0]}, which is missing; correct the line or remove it."
        )
    return paths


def unpaired(splits: Mapping[str, Sequence[base.Sample]], modalities: Sequence[str]) -> list[str]:
    """A warning for each split with images of several modalities, of which some share no triplet with another."""
    warnings = []
    for split, samples in splits.items():
        first = {sample.modalities: sample for sample in reversed(samples)}
        alone = [name for name in modalities if {s for s in first if name in s} == {(name,)}]
        if alone and len(first) > 1:
            other = next(sample for names, sample in first.items() if names != (alone[0],))
            warnings.append(
                f"WARNING: no image of {' and none of '.join(alone)} in {split} shares a triplet with another modality, such "
                f"as {first[alone[0],].files[0]} with {other.files[0]}; give the images of a triplet one name, or one line "
                "of the table (docs/own_data.md)."
            )
    return warnings
