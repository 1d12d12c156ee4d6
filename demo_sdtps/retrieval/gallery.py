"""A gallery's index: the features of own images in a table, brought up to date with the images; and what features depend on
(docs/search.md).

A row is a triplet: its name, the paths of its files, their `stamps` (`Triplet.stamp`), what is present, and its labels.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    TABLE,
    Table,
    connect,
    create_table,
    engine_errors,
    open_table,
)
from demo_sdtps.runtime import distributed
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.runtime.files import sha256
from demo_sdtps.runtime.progress import progress

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("name", *map(str.lower, MODALITIES), "stamps", "present")
"""Of texts, the name is the key; labels follow."""
NUMBERS = {"int64": r"-?(0|[1-9]\d{0,17})", "float64": r"-?(0|[1-9]\d{0,9})(\.\d{1,5})?"}
"""Arrow's types of labels, by what all of a column's texts are, which keep 18 and 15 digits apart; others stay texts."""

Extract = Callable[[Sequence[Triplet]], np.ndarray]  # features (n, D) float32 of triplets


class Changes(NamedTuple):
    """Numbers of triplets that were new, changed and removed since the index was written."""

    new: int
    changed: int
    removed: int


@dataclass
class Index:
    """The index at a place, of the images in a folder; its table, which records `facts`, is None until it is made, with
    `rebuild` in place of the one that is there."""

    place: str
    folder: Path
    facts: Mapping[str, Any]
    rebuild: bool
    table: Table | None = None

    def texts(self, triplets: Iterable[Triplet], labels: Iterable[str]) -> dict[str, Any]:
        """The columns of triplets as texts, paths relative to the folder."""
        import pyarrow as pa

        prefix = f"{self.folder}{os.sep}"
        columns: dict[str, list[str | None]] = {name: [] for name in (*COLUMNS, *labels)}
        for triplet in triplets:
            paths = [path and as_text(path.removeprefix(prefix)) for path in triplet.paths]
            present = ",".join(triplet.modalities)
            row = [as_text(triplet.name), *paths, triplet.stamp(), present]
            row += [triplet.labels.get(label) or None for label in labels]
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
        return {name: pa.array(column, pa.string()) for name, column in columns.items()}


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


def open_index(place: str | Path, gallery: Path, origin: Mapping[str, Any], rebuild: bool) -> Index:
    """The index at a place, or a new one, which with `rebuild` replaces another one when it is brought up to date. The main
    one of several processes looks at it. Raises `UserError` for an index of features of another origin, or of a gallery
    elsewhere that still exists; where its folder is gone, it has moved."""
    here, folder = str(gallery.resolve()), gallery if gallery.is_dir() else gallery.parent
    index = Index(str(place), folder, {**origin, "gallery": here}, rebuild)
    if distributed.is_main() and not rebuild and (table := open_table(place)):
        check_origin(table.place, table.facts, origin, REBUILD)
        other = table.facts["gallery"]
        if other != here and Path(other).exists():
            raise UserError(
                f"The index {place} is of the gallery {other}, not of {gallery}; {REBUILD}."
            )
        index.table = table
    return index


def update(
    index: Index,
    triplets: Sequence[Triplet],
    extract: Extract,
    width: int,
    check: Callable[[Sequence[Triplet]], list[Triplet]] = list,
) -> Changes:
    """Bring an index up to date with its gallery. New and changed triplets are extracted as `check` returns them; those that it
    leaves images out of count as changed again the next time. Each process writes its part of a `BATCH` at once, so that an
    interrupted update continues there."""
    changes, outdated = distributed.broadcast_from_main(lambda: _begin(index, triplets, width))
    index.table = index.table or open_table(index.place)  # which the main process has made
    assert index.table
    with progress(total=len(outdated), desc="indexing", unit="triplet") as bar:
        for start in range(0, len(outdated), BATCH * distributed.world_size()):
            rows = outdated[start : start + BATCH * distributed.world_size()]
            chunk = check([triplets[row] for row in rows])
            each = -(-len(chunk) // distributed.world_size())
            share = chunk[distributed.rank() * each : (distributed.rank() + 1) * each]
            # stamps are those before the images are read
            columns = index.texts(share, index.table.labels[len(COLUMNS) :])
            features = extract(share)
            if share:
                index.table.put(columns, features)
            bar.update(len(rows))
    distributed.all_gather_object(None)  # all have written
    if distributed.is_main() and any(changes):
        index.table.tidy()
    return changes


def _begin(index: Index, triplets: Sequence[Triplet], width: int) -> tuple[Changes, list[int]]:
    """Make the table where there is none, and drop from it the triplets that have changed or are gone; → the changes, and the
    rows to extract. Where labels of others differ, the table is written anew, with the features that it has. Raises `UserError`
    for labels that no column can be named by."""
    import pyarrow as pa
    import pyarrow.compute as pc

    labels = dict.fromkeys(label for triplet in triplets for label in triplet.labels)
    for label in labels:
        if label in (*COLUMNS, FEATURE) or not label or {".", "`"} & {*label}:
            raise UserError(
                f"The index has no column {label!r} for a label of {index.facts['gallery']}; rename it."
            )
    texts = index.texts(progress(triplets, "looking for changes", unit="triplet"), labels)
    types = {name: pa.string() for name in COLUMNS} | {n: label_type(texts[n]) for n in labels}
    if index.rebuild:
        with engine_errors(index.place):
            connect(index.place).drop_table(TABLE, ignore_missing=True)
    table = index.table or create_table(index.place, index.facts, types, width)
    stored = table.read(names=table.labels)
    place = pc.index_in(texts["name"], stored.columns["name"])  # null: a new one
    stamps = stored.columns["stamps"].take(place).combine_chunks()
    is_kept = pc.fill_null(pc.equal(texts["stamps"], stamps), False)
    rows = np.asarray(place.filter(is_kept))
    gone = np.setdiff1d(np.arange(len(stored)), rows)
    wanted = pa.table(texts, pa.schema([*types.items()])).filter(is_kept)
    before = stored.columns.select(table.labels).take(rows)
    if wanted.column_names == before.column_names and wanted.columns == before.columns:
        table.delete(stored.names(gone).tolist())
    else:
        spans = (slice(start, start + BATCH) for start in range(0, len(rows), BATCH))
        kept = ((wanted[span].to_pydict(), stored.take(rows[span]).numpy()) for span in spans)
        table = create_table(index.place, table.facts, types, width, kept, "overwrite")
    index.table = table
    outdated = np.flatnonzero(~np.asarray(is_kept)).tolist()
    changed = len(outdated) - place.null_count
    return Changes(place.null_count, changed, len(gone) - changed), outdated


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


def check_origin(
    place: str, facts: Mapping[str, Any], origin: Mapping[str, Any], advice: str
) -> None:
    """Raise `UserError` where stored features, by the recorded `facts`, depend on something else than `origin`."""
    was, now = ({**each, **each.get("configuration", {})} for each in (facts, origin))
    for name in now:
        if name not in ("checkpoint", "configuration") and was.get(name) != now[name]:
            what = f"{name} ({was.get(name)!r}, not {now[name]!r})"
            if name.endswith("_sha256"):
                what = name.removesuffix("_sha256")
            raise UserError(f"The features in {place} are of another {what}; {advice}.")


def model_keys(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys on which features depend, but for the precision."""
    values, rooms = flatten(cfg), ("MODEL.", "INPUT.")
    names = (name for name in DEMO_SCHEMA.by_name if name.startswith(rooms))
    keys = {name: values[name] for name in names if name not in WITHOUT_EFFECT}
    return {**keys, "TEST.NECK_FEAT": cfg.TEST.NECK_FEAT}
