"""An index is brought up to date with the images of its gallery (docs/search.md)."""
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.files import sha256
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.engine.extractor import UNSHARED, Extractor
from demo_sdtps.engine.search.store import MANIFEST, PART_ROWS, REBUILD, Index, Part, check_files, read_index

WEIGHTS = "weights"
UNUSED = ("MODEL.DEVICE", "MODEL.DEVICE_ID", "MODEL.COMPILE", *UNSHARED)
"""Keys of MODEL on which features do not depend."""

Extract = Callable[[Sequence[Triplet]], np.ndarray]
"""Features (n, D) float32 of n triplets."""


class Changes(NamedTuple):
    """Numbers of triplets that were new, changed and removed since the index was written."""

    new: int
    changed: int
    removed: int


def extraction(reid: Extractor, pattern: int) -> Extract:
    """`Extractor.features` of triplets, of the mean camera."""
    def extract(triplets: Sequence[Triplet]) -> np.ndarray:
        return reid.features(*zip(*(triplet.paths for triplet in triplets), strict=True), pattern=pattern)

    return extract


def origin_of(cfg: CfgNode, pattern: int) -> dict[str, Any]:
    """What features depend on: the content of the checkpoint, the return pattern, and configuration keys."""
    groups = {"MODEL": cfg.MODEL, "INPUT": cfg.INPUT, "TEST": {name: cfg.TEST[name] for name in ("NECK_FEAT", "AMP")}}
    keys = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    used = {key: value for key, value in keys.items() if key not in UNUSED}
    # As it is read again: JSON has no tuples.
    return json.loads(json.dumps({WEIGHTS: sha256(cfg.TEST.WEIGHT), "return pattern": pattern, **used}))


def open_index(folder: Path, gallery: Path, origin: dict[str, Any], kind: str, rebuild: bool) -> Index:
    """The index in a folder, its files checked (`check_files`), or a new one.

    Raises `UserError` for one that is damaged, or of another gallery, checkpoint or configuration; with `rebuild` it is a new
    one, which replaces the other with its first `commit`.
    """
    try:
        index = read_index(folder)
        if index is not None:
            _check_fits(index, gallery, origin)
            check_files(index, kind)
    except UserError:
        if not rebuild or not (folder / MANIFEST).exists():
            raise
        index = None
    return Index(folder, origin, str(gallery.resolve())) if index is None else index


def update(index: Index, triplets: Sequence[Triplet], extract: Extract) -> Changes:
    """Bring an index up to date with its gallery. Triplets that are new or changed are extracted, `PART_ROWS` at a time.

    Each of these parts counts as soon as it is written, so an interrupted update continues there. Raises `UserError` as
    `Extractor.features` and `Index.commit`.
    """
    stamps = {triplet.name: triplet.stamp() for triplet in progress(triplets, "looking for changes", unit="triplet")}
    known = {name: stamp for part in index.parts for name, stamp in zip(part.names, part.stamps, strict=True)}
    todo = [triplet for triplet in triplets if known.get(triplet.name) != stamps[triplet.name]]
    changed, removed = sum(triplet.name in known for triplet in todo), len(known.keys() - stamps.keys())
    if changed or removed:
        _drop(index, stamps)
    start = 0
    with progress(total=len(todo), desc="indexing", unit="triplet") as bar:
        while start < len(todo):
            last = index.parts[-1] if index.parts and len(index.parts[-1].names) < PART_ROWS else Part("", [], [], [])
            chunk = todo[start:start + PART_ROWS - len(last.names)]
            features = extract(chunk)
            if last.names:
                index.parts.remove(last)
                features = np.concatenate([index.features([last]).read(0), features])
            names = [triplet.name for triplet in chunk]
            index.add(last.numbers + index.new_numbers(len(chunk)), last.names + names,
                      last.stamps + [stamps[name] for name in names], features)
            index.commit()
            start += len(chunk)
            bar.update(len(chunk))
    return Changes(len(todo) - changed, changed, removed)


def _drop(index: Index, stamps: Mapping[str, str]) -> None:
    """Drop the triplets whose files are not as in `stamps`, by name: the parts that have some are written anew."""
    for part in list(index.parts):
        kept = [row for row, name in enumerate(part.names) if stamps.get(name) == part.stamps[row]]
        if len(kept) < len(part.names):
            index.parts.remove(part)
            if kept:
                index.add([part.numbers[row] for row in kept], [part.names[row] for row in kept],
                          [part.stamps[row] for row in kept], index.features([part]).read(0)[kept])
    index.commit()


def _check_fits(index: Index, gallery: Path, origin: Mapping[str, Any]) -> None:
    """Raise `UserError` for another origin, and for another gallery, unless its folder is gone: it has moved then."""
    place = str(gallery.resolve())
    if index.gallery != place and Path(index.gallery).exists():
        raise UserError(f"The index {index.folder} is of the gallery {index.gallery}, not of {gallery}; {REBUILD}.")
    index.gallery = place
    for name in {**index.origin, **origin}:
        was, now = (found.get(name) for found in (index.origin, origin))
        if was != now:
            what = "other weights" if name == WEIGHTS else f"{name} {was!r}, not {now!r}"
            raise UserError(f"The index {index.folder} was made with {what}, and such features cannot be compared; give the "
                            f"same, or {REBUILD}.")
