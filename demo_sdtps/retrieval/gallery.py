"""A gallery's index: the features of own images in a table, brought up to date with the images; and what features depend on
(docs/search.md).

A row is a triplet: its name, the paths of its files, what is present, its labels, and `stamps`, a text that differs where one
of these, the size or a time of a file (`Triplet.stamp`) differs.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import WITHOUT_EFFECT
from demo_sdtps.config.load import DEMO_SCHEMA, flatten
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import verify
from demo_sdtps.evaluation.distances import make_comparison
from demo_sdtps.modeling.checkpoints.loading import weights_file
from demo_sdtps.retrieval.features import encode_present, modality_mask
from demo_sdtps.retrieval.reid import Reid
from demo_sdtps.retrieval.table import (
    BATCH,
    FEATURE,
    REBUILD,
    Table,
    create_table,
    open_table,
)
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.runtime.files import sha256
from demo_sdtps.runtime.progress import progress

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("name", *map(str.lower, MODALITIES), "stamps", "present")
"""Columns of texts, of which the name is the key; the labels follow."""
NUMBERS = {"int64": r"-?(0|[1-9]\d{0,17})", "float64": r"-?(0|[1-9]\d{0,9})(\.\d{1,5})?"}
"""Arrow's types of labels, by what all of a column's texts are, which keep 18 and 15 digits apart; others stay texts."""

Extract = Callable[[Sequence[Triplet]], np.ndarray]  # features (n, D) float32 of triplets


class Changes(NamedTuple):
    """Numbers of triplets that were new, changed and removed since the index was written."""

    new: int
    changed: int
    removed: int


def extract_triplets(reid: Reid, pattern: int, triplets: Sequence[Triplet]) -> np.ndarray:
    """The values of `Reid.features` of triplets, by their cameras."""
    if not triplets:
        return np.empty((0, reid.widths[pattern]), np.float32)
    images = zip(*(triplet.paths for triplet in triplets), strict=True)
    try:
        cameras = [triplet.labels.get("camera") for triplet in triplets]
        return reid.features(*images, return_pattern=pattern, camera=cameras).values
    except UserError:
        verify(path for triplet in triplets for path in triplet.paths if path)
        raise


def open_index(
    place: str | Path,
    gallery: Path,
    origin: Mapping[str, Any],
    triplets: Sequence[Triplet],
    width: int,
    rebuild: bool,
) -> Table:
    """The table of the index at a place; an empty one where there is none, with `rebuild`, and where the gallery's triplets
    have other labels, or labels of other types. Raises `UserError` for features of another origin, for those of a gallery
    elsewhere that still exists (where its folder is gone, it has moved), and for labels that no column can be named by."""
    import pyarrow as pa

    here, types = str(gallery.resolve()), {name: pa.string() for name in COLUMNS}
    for label in dict.fromkeys(label for triplet in triplets for label in triplet.labels):
        if label in (*COLUMNS, FEATURE) or not label or {".", "`"} & {*label}:
            raise UserError(
                f"The index has no column {label!r} for a label of {gallery}; rename it."
            )
        texts = [triplet.labels.get(label) or None for triplet in triplets]
        types[label] = label_type(pa.array(texts, pa.string()))
    table = None if rebuild else open_table(place)
    if table:
        check_origin(table, origin)
        other = table.facts["gallery"]
        if other != here and Path(other).exists():
            raise UserError(
                f"The index {place} is of the gallery {other}, not of {gallery}; {REBUILD}."
            )
    if table and table.labels == types:
        return table
    is_other = rebuild or table is not None
    return create_table(place, {**origin, "gallery": here}, types, width, replace=is_other)


def update(
    table: Table,
    gallery: Path,
    triplets: Sequence[Triplet],
    extract: Extract,
    check: Callable[[Sequence[Triplet]], list[Triplet]] = list,
) -> Changes:
    """Bring a table up to date with its gallery. New and changed triplets are extracted as `check` returns them; those that it
    leaves images out of count as changed again the next time. A `BATCH` is written at once, so that an interrupted update
    continues there."""
    import pyarrow.compute as pc

    columns = as_columns(
        progress(triplets, "looking for changes", unit="triplet"), gallery, table.labels
    )
    stored = table.read(names=["name", "present", "stamps"])
    place = pc.index_in(columns["name"], stored.columns["name"])  # null: a new one
    stamps = stored.columns["stamps"].take(place).combine_chunks()
    is_kept = pc.fill_null(pc.equal(columns["stamps"], stamps), False)
    gone = np.setdiff1d(np.arange(len(stored)), np.asarray(place.filter(is_kept)))
    table.delete(stored.names(gone).tolist())
    outdated = np.flatnonzero(~np.asarray(is_kept)).tolist()
    with progress(total=len(outdated), desc="indexing", unit="triplet") as bar:
        for start in range(0, len(outdated), BATCH):
            rows = outdated[start : start + BATCH]
            if chunk := check([triplets[row] for row in rows]):
                # stamps are those before the images are read
                table.put(as_columns(chunk, gallery, table.labels), extract(chunk))
            bar.update(len(rows))
    changed = len(outdated) - place.null_count
    changes = Changes(place.null_count, changed, len(gone) - changed)
    if any(changes):
        table.tidy()
    return changes


def as_columns(
    triplets: Iterable[Triplet], gallery: Path, labels: Iterable[str]
) -> "dict[str, pa.StringArray]":
    """The columns of a gallery's triplets as texts, paths relative to its folder."""
    import pyarrow as pa

    folder = gallery if gallery.is_dir() else gallery.parent
    rows = []
    for triplet in triplets:
        paths = [each and as_text(each.removeprefix(f"{folder}{os.sep}")) for each in triplet.paths]
        stamps = f"{triplet.stamp()} {paths} {sorted(triplet.labels.items())}"
        texts = as_text(triplet.name), *paths, stamps, ",".join(triplet.modalities)
        rows.append({**triplet.labels, **dict(zip(COLUMNS, texts, strict=True))})
    return {name: pa.array([row.get(name) or None for row in rows], pa.string()) for name in labels}


def label_type(column: "pa.StringArray") -> "pa.DataType":
    """The type of a column of labels: whole numbers, numbers or text, by what all are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, pattern in NUMBERS.items():
        is_number = pc.match_substring_regex(column, f"^{pattern}$")
        if column.null_count < len(column) and pc.all(is_number).as_py():
            return getattr(pa, name)()
    return pa.string()


def as_text(name: str) -> str:
    """A file's name as a text of a table: bytes that are not UTF-8 are escaped."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def describe_features(cfg: CfgNode, pattern: int) -> dict[str, Any]:
    """What features depend on: the content of the checkpoint, the return pattern, and the configuration, whose `sources` are
    the codes of the modalities (`encode_present`) of each of the equal parts of a feature."""
    path = weights_file(cfg.TEST.WEIGHT)
    # auto is another one on other hardware
    precision = choose_precision(cfg.TEST.AMP, choose_device(cfg))
    amp = cfg.TEST.AMP if cfg.TEST.AMP != "auto" else f"auto, {precision or 'float32'}"
    sources = make_comparison(cfg, pattern).sources
    codes = [int(encode_present(modality_mask(source))) for source in sources]
    return {
        # of OpenVINO's two files the one with the weights
        "checkpoint_sha256": sha256(path.with_suffix(".bin") if path.suffix == ".xml" else path),
        "return_pattern": pattern,
        "configuration": {**model_keys(cfg), "TEST.AMP": amp, "sources": codes},
    }


def check_origin(table: Table, origin: Mapping[str, Any]) -> None:
    """Raise `UserError` where the features of a table depend on something else than `origin`."""
    was, now = ({**each, **each.get("configuration", {})} for each in (table.facts, origin))
    for name in now:
        if name not in ("checkpoint", "configuration") and was.get(name) != now[name]:
            what = f"{name} ({was.get(name)!r}, not {now[name]!r})"
            if name.endswith("_sha256"):
                what = name.removesuffix("_sha256")
            raise UserError(f"The features in {table.place} are of another {what}; {REBUILD}.")


def model_keys(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys on which features depend, but for the precision."""
    values, rooms = flatten(cfg), ("MODEL.", "INPUT.")
    names = (name for name in DEMO_SCHEMA.by_name if name.startswith(rooms))
    keys = {name: values[name] for name in names if name not in WITHOUT_EFFECT}
    return {**keys, "TEST.NECK_FEAT": cfg.TEST.NECK_FEAT}
