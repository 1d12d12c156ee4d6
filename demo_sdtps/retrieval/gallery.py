"""A gallery's index: the features of own images in a store, brought up to date with the images (docs/retrieval.md).

Its columns are the `names` of the triplets and the `stamps` of their files (`Triplet.stamp`); its record has the folder of the
gallery, and the approximate indices by kind.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import unreadable, verify
from demo_sdtps.retrieval.reid import Reid
from demo_sdtps.retrieval.store import Gallery, Store, check_origin, check_store_folder, open_store
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


def extract_triplets(reid: Reid, pattern: int, triplets: Sequence[Triplet]) -> np.ndarray:
    """`Reid.features` of triplets, by their cameras; each of several processes computes a part of them."""
    if not triplets:
        return np.empty((0, 0), np.float32)
    shard = shard_for_rank(triplets)
    images = zip(*(triplet.paths for triplet in shard), strict=True)
    try:
        cameras = [triplet.labels.get("camera") for triplet in shard]
        rows = reid.features(*images, return_pattern=pattern, camera=cameras)
    except UserError:
        verify(path for triplet in shard for path in triplet.paths if path)
        raise
    return all_gather_rows(torch.from_numpy(rows), len(triplets)).numpy()


def drop_unreadable(triplets: Sequence[Triplet], broken: dict[str, str]) -> list[Triplet]:
    """The triplets without images that cannot be read, and without those that have no other. What is wrong is added to
    `broken` by path. Each of several processes reads a part of them."""
    paths = (path for triplet in shard_for_rank(triplets) for path in triplet.paths if path)
    for damaged in all_gather_object(unreadable(paths)):
        broken.update(damaged)
    remaining = [triplet.without(broken) for triplet in triplets]
    return [triplet for triplet in remaining if any(triplet.paths)]


def open_index(folder: Path, gallery: Path, origin: dict[str, Any], rebuild: bool) -> Store:
    """The index in a folder, or a new one, which with `rebuild` replaces another one at its first `commit`."""
    place = str(gallery.resolve())
    if rebuild:
        check_store_folder(folder)
    index = None if rebuild else open_store(folder, REBUILD)
    if index is None:
        return Store(folder, origin, REBUILD, {"gallery": place, "approximate": {}})
    check_origin(index, origin)
    if index.record["gallery"] != place and Path(index.record["gallery"]).exists():
        raise UserError(
            f"The index {folder} is of the gallery {index.record['gallery']}, not of {gallery}; {REBUILD}."
        )
    index.record["gallery"] = place  # where its folder is gone, it has moved
    index.record.setdefault("approximate", {})
    index.features()  # a shard that is missing or damaged is refused before the work
    return index


def read_gallery(index: Store) -> Gallery:
    """The triplets of an index, with those modalities present whose files their stamps have."""
    stamps = (stamp.split(" ")[: len(MODALITIES)] for stamp in index.texts("stamps"))
    present = np.array([[file != "-" for file in files] for files in stamps], bool)
    present = present.reshape(-1, len(MODALITIES))
    return Gallery(index.features(), present, list(index.texts("names")))


def update(
    index: Store | None,
    triplets: Sequence[Triplet],
    extract: Extract,
    check: Callable[[Sequence[Triplet]], list[Triplet]] = list,
) -> Changes:
    """Bring an index up to date with its gallery. Triplets that are new or changed are extracted as `check` returns them,
    `SHARD_ROWS` at a time; those that it leaves images out of count as changed again the next time.

    Each of these shards counts as soon as it is written, so an interrupted update continues there. Several processes
    extract together; the main one has the index, the others None.
    """
    changes, outdated = broadcast_from_main(
        lambda: _drop_outdated(index, triplets) if index else (Changes(0, 0, 0), [])
    )
    with progress(total=len(outdated), desc="indexing", unit="triplet") as bar:
        for start in range(0, len(outdated), SHARD_ROWS):
            rows = outdated[start : start + SHARD_ROWS]
            chunk = check([triplets[row] for row in rows])
            # before the images are read
            stamps = [triplet.stamp() for triplet in chunk] if index else []
            features = extract(chunk)
            if index and chunk:
                names = [triplet.name for triplet in chunk]
                index.append(features, {"names": names, "stamps": stamps})
                index.commit()
            bar.update(len(rows))
    return changes


def _drop_outdated(index: Store, triplets: Sequence[Triplet]) -> tuple[Changes, list[int]]:
    """Drop from the index the triplets that have changed or are gone; → the changes, and the rows to extract."""
    stamps = {
        triplet.name: triplet.stamp()
        for triplet in progress(triplets, "looking for changes", unit="triplet")
    }
    rows = list(zip(index.texts("names"), index.texts("stamps"), strict=True))
    indexed = dict(rows)
    outdated = [
        row
        for row, triplet in enumerate(triplets)
        if indexed.get(triplet.name) != stamps[triplet.name]
    ]
    changed = sum(triplets[row].name in indexed for row in outdated)
    removed = len(indexed.keys() - stamps.keys())
    if changed or removed:
        index.keep(np.array([stamps.get(name) == stamp for name, stamp in rows]))
        index.commit()
    return Changes(len(outdated) - changed, changed, removed), outdated
