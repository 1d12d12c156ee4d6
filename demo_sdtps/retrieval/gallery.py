"""An index: features of a gallery of own images in a store, brought up to date with its images (docs/retrieval.md)."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from demo_sdtps.config import UserError
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import unreadable, verify
from demo_sdtps.retrieval.reid import Reid
from demo_sdtps.retrieval.store import (
    SUFFIX,
    Gallery,
    Store,
    check_origin,
    check_store_folder,
    open_store,
)
from demo_sdtps.runtime.distributed import (
    all_gather_object,
    all_gather_rows,
    broadcast_from_main,
    shard_for_rank,
)
from demo_sdtps.runtime.progress import progress

SHARD_ROWS = 4096
REBUILD = "pass --rebuild to make it anew, or --index another folder"

Extract = Callable[[Sequence[Triplet]], np.ndarray]
"""Features (n, D) float32 of triplets."""


class Changes(NamedTuple):
    """Numbers of triplets that were new, changed and removed since the index was written."""

    new: int
    changed: int
    removed: int


@dataclass
class Index:
    """The triplets of a store. Its record has the folder of the `gallery`, and what is `approximate`, by kind."""

    store: Store
    rows: dict[str, list[tuple[str, str]]] = field(init=False)
    """By shard the name of each triplet, and the stamp of its files (`Triplet.stamp`)."""

    def __post_init__(self) -> None:
        self.rows = {}
        for shard in self.store.shards:
            columns = (self.store.texts(shard, column) for column in ("names", "stamps"))
            self.rows[shard] = list(zip(*columns, strict=True))

    @property
    def names(self) -> list[str]:
        return [name for rows in self.rows.values() for name, _ in rows]

    def gallery(self) -> Gallery:
        """Features, what is present, which are the files that a triplet's stamp has, and names."""
        stamps = (stamp.split(" ") for rows in self.rows.values() for _, stamp in rows)
        sets = [sum(1 << n for n, file in enumerate(files) if file != "-") for files in stamps]
        features = self.store.features(list(self.rows))
        return Gallery(features, np.array(sets, np.uint8), self.names)

    def add(self, rows: Sequence[tuple[str, str]], features: np.ndarray) -> None:
        """Write a shard of triplets with features (n, D), which counts from `commit` on."""
        shard = f"shard-{secrets.token_hex(8)}{SUFFIX}"
        names, stamps = zip(*rows, strict=True)
        self.store.write(shard, features, {"names": names, "stamps": stamps})
        self.rows[shard] = list(rows)

    def drop(self, stamps: Mapping[str, str]) -> None:
        """Drop the triplets whose files are not as in `stamps`, by name: the shards that have some are written anew."""
        for shard, rows in list(self.rows.items()):
            kept = [stamps.get(name) == stamp for name, stamp in rows]
            if not all(kept):
                del self.rows[shard]
                if any(kept):
                    features = self.store.features([shard]).take(np.flatnonzero(kept))
                    self.add(list(compress(rows, kept)), features)
        self.commit()

    def commit(self) -> None:
        """Make what is written count."""
        self.store.shards = list(self.rows)
        self.store.commit([kept["file"] for kept in self.store.record["approximate"].values()])


def extraction(reid: Reid, pattern: int) -> Extract:
    """`Reid.features` of triplets, of the mean camera; each of several processes computes a shard of them."""

    def extract(triplets: Sequence[Triplet]) -> np.ndarray:
        if not triplets:
            return np.empty((0, 0), np.float32)
        shard = shard_for_rank(triplets)
        images = zip(*(triplet.paths for triplet in shard), strict=True)
        try:
            rows = reid.features(*images, return_pattern=pattern)
        except UserError:
            verify(path for triplet in shard for path in triplet.paths if path)
            raise
        return all_gather_rows(torch.from_numpy(rows), len(triplets)).numpy()

    return extract


def readable(triplets: Sequence[Triplet], broken: dict[str, str]) -> list[Triplet]:
    """The triplets without images that cannot be read, and without those that have no other. What is wrong is added to
    `broken` by path. Each of several processes reads a shard of them."""
    paths = (path for triplet in shard_for_rank(triplets) for path in triplet.paths if path)
    for damaged in all_gather_object(unreadable(paths)):
        broken.update(damaged)
    remaining = [triplet.without(broken) for triplet in triplets]
    return [triplet for triplet in remaining if any(triplet.paths)]


def open_index(folder: Path, gallery: Path, origin: dict[str, Any], rebuild: bool) -> Index:
    """The index in a folder, or a new one, which with `rebuild` replaces another one at its first `commit`."""
    place = str(gallery.resolve())
    if rebuild:
        check_store_folder(folder)
    store = None if rebuild else open_store(folder, REBUILD)
    if store is None:
        return Index(Store(folder, origin, REBUILD, {"gallery": place, "approximate": {}}))
    check_origin(store, origin)
    if store.record["gallery"] != place and Path(store.record["gallery"]).exists():
        raise UserError(
            f"The index {folder} is of the gallery {store.record['gallery']}, not of {gallery}; {REBUILD}."
        )
    store.record["gallery"] = place  # where its folder is gone, it has moved
    store.record.setdefault("approximate", {})
    return Index(store)


def update(
    index: Index | None,
    triplets: Sequence[Triplet],
    extract: Extract,
    check: Callable[[Sequence[Triplet]], list[Triplet]] = list,
) -> Changes:
    """Bring an index up to date with its gallery. Triplets that are new or changed are extracted as `check` returns them,
    `SHARD_ROWS` at a time; those that it leaves images out of count as changed again the next time.

    Each of these shards counts as soon as it is written, so an interrupted update continues there. Several processes
    extract together; the main one has the index, the others None.
    """
    changes, todo = broadcast_from_main(
        lambda: _plan(index, triplets) if index else (Changes(0, 0, 0), [])
    )
    with progress(total=len(todo), desc="indexing", unit="triplet") as bar:
        for start in range(0, len(todo), SHARD_ROWS):
            rows = todo[start : start + SHARD_ROWS]
            chunk = check([triplets[row] for row in rows])
            # before the images are read
            stamps = [(triplet.name, triplet.stamp()) for triplet in chunk] if index else []
            features = extract(chunk)
            if index and chunk:
                index.add(stamps, features)
                index.commit()
            bar.update(len(rows))
    return changes


def _plan(index: Index, triplets: Sequence[Triplet]) -> tuple[Changes, list[int]]:
    """What has changed, and the rows of the triplets to extract; drops from the index what is no longer valid."""
    stamps = {
        triplet.name: triplet.stamp()
        for triplet in progress(triplets, "looking for changes", unit="triplet")
    }
    known = dict(row for rows in index.rows.values() for row in rows)
    todo = [
        row
        for row, triplet in enumerate(triplets)
        if known.get(triplet.name) != stamps[triplet.name]
    ]
    changed = sum(triplets[row].name in known for row in todo)
    removed = len(known.keys() - stamps.keys())
    if changed or removed:
        index.drop(stamps)
    return Changes(len(todo) - changed, changed, removed), todo
