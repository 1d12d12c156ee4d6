"""An index is brought up to date with the images of its gallery (docs/search.md)."""
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.files import sha256
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.base import MAX_NAMED
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import unreadable
from demo_sdtps.engine.distributed import all_gather_object, all_gather_rows, broadcast_from_main, shard_for_rank
from demo_sdtps.engine.extractor import UNSHARED, Extractor
from demo_sdtps.engine.runtime import choose_device, choose_precision
from demo_sdtps.engine.search.store import MANIFEST, PART_ROWS, REBUILD, Index, Part, check_files, read_index

WEIGHTS = "weights"
UNUSED = ("MODEL.DEVICE", "MODEL.DEVICE_ID", "MODEL.COMPILE", *UNSHARED)
"""Keys of MODEL on which features do not depend."""

Unread = dict[str, str]
"""Images that cannot be read, each with the reason (`unreadable`)."""

Extract = Callable[[Sequence[Triplet]], tuple[np.ndarray, Unread]]
"""Features (n, D) float32 of the triplets whose images can all be read, and the images that cannot."""


class Changes(NamedTuple):
    """Numbers of triplets that were new, changed and removed since the index was written."""

    new: int
    changed: int
    removed: int


def extraction(reid: Extractor, pattern: int) -> Extract:
    """`Extractor.features` of triplets, of the mean camera; each of several processes computes a share of them."""
    def features(triplets: Sequence[Triplet]) -> np.ndarray:
        paths = zip(*(triplet.paths for triplet in triplets), strict=True)
        return reid.features(*paths, pattern=pattern)

    def extract(triplets: Sequence[Triplet]) -> tuple[np.ndarray, Unread]:
        own = shard_for_rank(triplets)
        rows = np.zeros((len(own), reid.widths[pattern]), np.float32)
        unread: Unread = {}

        try:
            rows[:] = features(own)
        except UserError:
            unread = unreadable(sorted({path for triplet in own for path in triplet.paths if path}))
            if not unread:
                raise
            whole = are_whole(own, unread)
            if whole.any():
                rows[whole] = features(list(compress(own, whole)))
        found = all_gather_rows(torch.from_numpy(rows), len(triplets)).numpy()
        unread_by_all = {path: reason for part in all_gather_object(unread) for path, reason in part.items()}
        return found[are_whole(triplets, unread_by_all)], unread_by_all

    return extract


def are_whole(triplets: Sequence[Triplet], unread: Unread) -> np.ndarray:
    """For each triplet whether all of its images can be read, (n,) bool."""
    return np.array([unread.keys().isdisjoint(triplet.paths) for triplet in triplets])


def check_read(unread: Unread, advice: str) -> None:
    """Raise `UserError` where images cannot be read, with their number and the first ones; `advice` ends the sentence."""
    if unread:
        named = ", ".join(f"{path} {reason}" for path, reason in list(unread.items())[:MAX_NAMED])
        more = ", …" if len(unread) > MAX_NAMED else ""
        raise UserError(f"Images that cannot be read: {len(unread)}, namely {named}{more}; {advice}")


def origin_of(cfg: CfgNode, pattern: int) -> dict[str, Any]:
    """What features depend on: the content of the checkpoint, the return pattern, and configuration keys."""
    precision = choose_precision(cfg.TEST.AMP, choose_device(cfg))  # auto is another one on other hardware
    amp = cfg.TEST.AMP if cfg.TEST.AMP != "auto" else f"auto, {precision or 'float32'}"
    groups = {"MODEL": cfg.MODEL, "INPUT": cfg.INPUT, "TEST": {"NECK_FEAT": cfg.TEST.NECK_FEAT, "AMP": amp}}
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


def update(index: Index | None, triplets: Sequence[Triplet], extract: Extract) -> Changes:
    """Bring an index up to date with its gallery. Triplets that are new or changed are extracted, `PART_ROWS` at a time.

    Each of these parts counts as soon as it is written, so an interrupted update continues there. Several processes extract
    together; the main one has the index, the others None. Raises `UserError` as `Extractor.features` and `Index.commit`, and
    at the end for images that cannot be read: the index has all other triplets then.
    """
    changes, parts = broadcast_from_main(lambda: _plan(index, triplets) if index is not None else (Changes(0, 0, 0), []))
    unread: Unread = {}
    with progress(total=sum(map(len, parts)), desc="indexing", unit="triplet") as bar:
        for part in parts:
            chunk = [triplets[row] for row in part]
            stamps = [triplet.stamp() for triplet in chunk] if index is not None else []  # before the images are read
            features, missing = extract(chunk)
            unread |= missing
            if index is not None and len(features):
                whole = are_whole(chunk, missing)
                _append(index, [triplet.name for triplet in compress(chunk, whole)], list(compress(stamps, whole)), features)
            bar.update(len(chunk))
    check_read(unread, "replace or remove them and start again, which reads these alone: the index has all others.")
    return changes


def _plan(index: Index, triplets: Sequence[Triplet]) -> tuple[Changes, list[list[int]]]:
    """What has changed, and the rows of the triplets to extract, by part; drops from the index what is no longer valid."""
    stamps = {triplet.name: triplet.stamp() for triplet in progress(triplets, "looking for changes", unit="triplet")}
    known = {name: stamp for part in index.parts for name, stamp in zip(part.names, part.stamps, strict=True)}
    todo = [row for row, triplet in enumerate(triplets) if known.get(triplet.name) != stamps[triplet.name]]
    changed, removed = sum(triplets[row].name in known for row in todo), len(known.keys() - stamps.keys())
    if changed or removed:
        _drop(index, stamps)
    room = PART_ROWS - len(index.parts[-1].names) if index.parts else 0
    starts = [0, *range(room or PART_ROWS, len(todo), PART_ROWS), len(todo)]
    parts = [todo[start:stop] for start, stop in pairwise(starts) if start < stop]
    return Changes(len(todo) - changed, changed, removed), parts


def _append(index: Index, names: list[str], stamps: list[str], features: np.ndarray) -> None:
    """Add triplets and their features (n, D) to the last part where it has room for them, else as a new one."""
    last = index.parts[-1] if index.parts and len(index.parts[-1].names) + len(names) <= PART_ROWS else Part("", [], [], [])
    if last.names:
        index.parts.remove(last)
        features = np.concatenate([index.features([last]).read(0), features])
    index.add(last.numbers + index.new_numbers(len(names)), last.names + names, last.stamps + stamps, features)
    index.commit()


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
