"""Own data without code: DATASETS.NAMES Folder and CSV (docs/own_data.md). A triplet may lack images of some modalities."""

import csv
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from unicodedata import normalize

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import plain, warn_of_alike
from demo_sdtps.datasets import base
from demo_sdtps.datasets.folders import (
    PLAIN,
    Folders,
    Triplet,
    read_folder,
    read_folders,
    read_query,
)

JUNK = re.compile(r"-0*1(\.0*)?")
"""The identity of images that are no query and no match, as Market-1501 has them; they are left out."""
TABLE = ".csv"
COLUMNS = ("split", "identity", "camera", *(modality.lower() for modality in MODALITIES))
CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
SEPARATORS = ",;\t"  # of tables, which spreadsheets choose by their language


def folder_reader(cfg: CfgNode) -> base.Reader:
    """Reader of ROOT_DIR/{train,query,gallery}/{RGB,NI,TI} with labels in the names, by DATASETS.FOLDERS and PATTERN."""
    root, folders = Path(cfg.DATASETS.ROOT_DIR), read_folders(cfg)
    modalities, pattern = cfg.MODEL.MODALITIES, compile_pattern(cfg)

    def read() -> list[Triplet]:
        triplets = []
        # beside the images of "." stand the folders of other modalities
        others = folders.values() if "." in folders.values() else ()
        for split in base.SPLITS:
            places = {name: root / folders[split] / folders[name] for name in modalities}
            for name, paths in base.find_triplets(places, others).items():
                labels = name_labels(pattern, name) | {"split": split}
                triplets.append(Triplet(paths, name=name, labels=labels))
        return triplets

    splits = ",".join(folders[name] for name in base.SPLITS)
    layout = f"/{{{splits}}}/{{{','.join(folders[name] for name in modalities)}}}"
    what = f"DATASETS.PATTERN {pattern.pattern!r}"
    return _make_reader(read, "camera" in pattern.groupindex, layout, what)


def csv_reader(cfg: CfgNode) -> base.Reader:
    """Reader of the table DATASETS.ROOT_DIR with the columns COLUMNS, whose paths are relative to its folder."""
    table = Path(cfg.DATASETS.ROOT_DIR)
    columns, lines = read_table(table) if table.exists() else (COLUMNS, {})
    read = lambda: table_triplets(table, columns, lines, cfg.MODEL.MODALITIES)  # noqa: E731
    return _make_reader(
        read,
        "camera" in columns,
        f", which must be a table with {','.join(COLUMNS)}",
        f"the table {table}",
    )


def table_triplets(
    table: Path,
    columns: Collection[str],
    lines: Mapping[int, Mapping[str, str]],
    modalities: Collection[str],
) -> list[Triplet]:
    """The triplets of a table's lines with images of these modalities, named by the first path; other cells are labels."""
    images = [name.lower() for name in MODALITIES if name in modalities]
    if not {*images} & {*columns}:
        raise UserError(
            f"{table} has no column of images; it needs {' or '.join(images)}, and commas, semicolons or tabs as separators."
        )
    triplets = []
    for number, line in lines.items():
        files = {name: line[name] for name in images if line.get(name)}
        paths = {name: base.existing_path(table.parent, file) for name, file in files.items()}
        # a link that leads nowhere is left to the reader of pixels, as in a folder
        if absent := [path for path in paths.values() if not os.path.lexists(path)]:
            raise UserError(
                f"Line {number} of {table} names {absent[0]}, which is missing; correct the line or remove it."
            )
        labels = {name: text for name, text in line.items() if text and name not in COLUMNS[3:]}
        if files:
            by_modality = tuple(map(paths.get, COLUMNS[3:]))
            triplets.append(Triplet(by_modality, name=next(iter(files.values())), labels=labels))
    if left := len(lines) - len(triplets):
        base.logger.warning("%s: %d lines without an image to read are left out", table, left)
    return triplets


def read_triplets(
    place: Path,
    split: str,
    modalities: Collection[str],
    *,
    folders: Folders = PLAIN,
    pattern: re.Pattern | None = None,
    camera: str | None = None,
) -> list[Triplet]:
    """The gallery or the query of a search: of a folder or an image as `read_query`, or of a table, if it says so those of the
    `split`. Labels are other columns and named groups of the `pattern` in the names; `camera` is that of those without."""
    if place.suffix.lower() == TABLE and place.is_file():
        every = table_triplets(place, *read_table(place), modalities)
        splits = {one.labels.get("split", split) for one in every}
        if not {split} <= splits <= {*base.SPLITS}:
            raise UserError(
                f"{place} has images of {', '.join(sorted(splits)) or 'no split'}, but needs {split}, and no split but "
                f"{', '.join(base.SPLITS)}; correct it."
            )
        every = [one for one in every if one.labels.get("split", split) == split]
        by_name = {one.name: one for one in every}
        if left := len({*every}) - len(by_name):
            base.logger.warning(
                "%s: %d lines are left out, as a later one has their first image", place, left
            )
        triplets = [by_name[name] for name in sorted(by_name)]
    elif split == base.QUERY:
        triplets = read_query(place, folders, modalities)
    else:
        triplets = read_folder(place, folders, modalities)
    output = []
    for one in triplets:
        labels = ({"camera": plain(camera)} if camera else {}) | dict(one.labels)
        labels |= name_labels(pattern, one.name) if pattern else {}
        labels.pop("split", None)
        output.append(replace(one, labels=labels))
    return output


def _make_reader(
    read: Callable[[], Iterable[Triplet]], has_cameras: bool, layout: str, what: str
) -> base.Reader:
    """Reader of all splits, which number identities and cameras together, or scenes without cameras; `what` has the labels."""
    needed = {"split", "identity", *(["camera"] if has_cameras else [])}

    @cache
    def samples() -> dict[str, list[base.Sample]]:
        triplets = [one for one in read() if not JUNK.fullmatch(one.labels.get("identity", ""))]
        for one in triplets:
            if not needed <= one.labels.keys() or one.labels["split"] not in base.SPLITS:
                raise UserError(
                    f"The image {one.files[0]} needs {', '.join(sorted(needed))} by {what}, the split one of "
                    f"{', '.join(base.SPLITS)}; correct or remove it (docs/own_data.md)."
                )
        identities = [one.labels["identity"] for one in triplets]
        cameras = [one.labels["camera"] if has_cameras else "" for one in triplets]
        warn_of_alike("identity", identities)
        warn_of_alike("camera", cameras)
        numbers, places = number_labels(identities), number_labels(cameras)
        order = sorted(places.values())
        scenes = (
            [0] * len(cameras) if has_cameras else number_scenes([one.paths for one in triplets])
        )
        splits: dict[str, list[base.Sample]] = {split: [] for split in base.SPLITS}
        for one, identity, name, scene in zip(triplets, identities, cameras, scenes, strict=True):
            camera = order.index(places[name]) if has_cameras else base.UNKNOWN
            sample = base.Sample(one.paths, numbers[identity], camera, scene, name)
            splits[one.labels["split"]].append(sample)
        return splits

    return base.Reader(
        lambda root, split: samples()[split],
        layout,
        by_scene=not has_cameras,
        locate=lambda root: root,
    )


def number_scenes(triplets: Sequence[tuple[str | None, ...]]) -> list[int]:
    """A number for each triplet, by its paths; those that have a file in common, by whatever links, have one."""
    scenes: list[int] = []
    rows: dict[object, int] = {}
    for row, paths in enumerate(triplets):
        earlier = {rows.setdefault(base.file_key(path), row) for path in paths if path} - {row}
        known = {scenes[other] for other in earlier}
        scenes.append(min(known, default=row))
        if len(known) > 1:  # the triplet joins scenes that were apart
            scenes = [min(known) if scene in known else scene for scene in scenes]
    return scenes


def compile_pattern(cfg: CfgNode) -> re.Pattern:
    """DATASETS.PATTERN, which must have the group identity."""
    try:
        pattern = re.compile(normalize("NFC", cfg.DATASETS.PATTERN))
        for name in ("identity", *map(str.lower, pattern.groupindex)):
            if name in COLUMNS:
                pattern.groupindex[name]
    except (re.error, KeyError) as error:
        raise UserError(
            f"DATASETS.PATTERN {cfg.DATASETS.PATTERN!r} is no regular expression with a group identity, in small letters "
            f"({error}); write one such as (?P<identity>\\d+) (docs/own_data.md)."
        ) from None
    return pattern


def name_labels(pattern: re.Pattern, name: str) -> dict[str, str]:
    """Texts of the named groups of `pattern` that are not empty in `name`, a path below the folder of a modality. Raises
    `UserError` where one is a piece of a number, as camera 1 of 12, and where the file's folders have other labels."""
    match = pattern.search(name)
    if not match:
        return {}
    last = pattern.search(name, name.rfind("/") + 1)
    if last and last.groupdict() != match.groupdict():
        raise UserError(
            f"The folders of the image {name} match the pattern {pattern.pattern!r}, and its own name does with other labels; "
            "begin the pattern with ^ for the labels of folders, or end it with [^/]*$ for those of names."
        )
    labels = {group: text for group, text in match.groupdict().items() if text}
    edges = [edge for span in match.regs[1:] for edge in span]
    for group, text in labels.items():
        start = match.start(group)
        # where two groups meet, they part a number on purpose
        alone = [edge for edge in match.span(group) if edges.count(edge) == 1]
        is_cut = any(re.fullmatch(r"\d\d", name[edge - 1 : edge + 1]) for edge in alone)
        if is_cut or re.search("(^|/)-$", name[:start]):
            raise UserError(
                f"The {group} {text} is a piece of a number in the name of the image {name} by the pattern "
                f"{pattern.pattern!r}; let it take all digits (\\d+), or put the others into a group of their own."
            )
    return labels


def read_table(table: Path) -> tuple[list[str], dict[int, dict[str, str]]]:
    """Columns, and lines by their numbers in the file; "" for a cell that a line lacks. Columns without a name, as pandas
    writes its index, are left out. Names of columns and labels, which are all cells but the paths of images, are `plain`."""
    lines = {}
    try:
        with open(table, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            separator = max(SEPARATORS, key=first.count)
            skipped = re.fullmatch(rf"sep=[{SEPARATORS}]\s*", first) is not None  # Excel's line
            if not skipped:
                file.seek(0)
            reader = csv.DictReader(file, restval="", strict=True, delimiter=separator)
            names = map(plain, reader.fieldnames or ())
            columns = [name.lower() if name.lower() in COLUMNS else name for name in names]
            reader.fieldnames = columns
            for line in reader:
                lines[reader.line_num + skipped] = line
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{table} is no table in UTF-8 ({error}); save it as CSV, UTF-8 (docs/own_data.md)."
        ) from None
    columns = [*filter(None, columns)]
    if twice := {name for name in columns if columns.count(name) > 1}:
        raise UserError(f"{table} has two columns {min(twice)!r}; rename or remove one.")
    for number, line in lines.items():
        line.pop("", None)
        for name in columns:
            clean = str.strip if name.upper() in MODALITIES else plain
            line[name] = clean(line[name])
            if None in line or CONTROL.search(line[name]):
                raise UserError(
                    f"Line {number} of {table} has an invisible character in {line[name]!r}, or more cells than the table has "
                    f"columns; remove it, or put a text with {separator!r} into quotation marks."
                )
    return columns, lines


def number_labels(labels: Iterable[str]) -> dict[str, int]:
    """A number for each label: its own where all are different whole numbers, else its place in the order of all."""
    distinct = sorted(set(labels))
    numbers = {int(label) for label in distinct if label.isdecimal() and len(label) < 19}
    is_own = len(numbers) == len(distinct)
    return {label: int(label) if is_own else place for place, label in enumerate(distinct)}
