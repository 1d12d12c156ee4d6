"""An index: features of a gallery of own images in a store, brought up to date with its images (docs/search.md)."""
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets.base import MAX_NAMED
from demo_sdtps.datasets.folders import Triplet
from demo_sdtps.datasets.images import unreadable
from demo_sdtps.retrieval.extractor import UNSHARED, Extractor
from demo_sdtps.retrieval.store import SUFFIX, Stack, Store, check_origin, check_own, open_store
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.runtime.distributed import all_gather_object, all_gather_rows, broadcast_from_main, shard_for_rank
from demo_sdtps.runtime.files import sha256
from demo_sdtps.runtime.progress import progress

SHARD_ROWS = 4096
REBUILD = "pass --rebuild to make it anew, or --index another folder"
UNUSED = ("MODEL.DEVICE", "MODEL.DEVICE_ID", "MODEL.COMPILE", *UNSHARED)
"""Keys of MODEL on which features do not depend."""

Extract = Callable[[Sequence[Triplet]], tuple[np.ndarray, dict[str, str]]]
"""Features (n, D) float32 of the triplets whose images can all be read, and the images that cannot, each with the reason."""


class Changes(NamedTuple):
    """Numbers of triplets that were new, changed and removed since the index was written."""

    new: int
    changed: int
    removed: int


@dataclass
class Part:
    """Triplets of a shard: their numbers, which nothing else in the index ever has, names, and stamps of their files
    (`Triplet.stamp`)."""

    shard: str
    numbers: list[int]
    names: list[str]
    stamps: list[str]


@dataclass
class Index:
    """The triplets of a store. Its record has the folder of the `gallery`, the number of the `next` triplet, the file of each
    kind of approximate index (`faiss`), and what was measured of it (`recall`): by how many queries, and a text."""

    store: Store
    parts: list[Part] = field(init=False)

    def __post_init__(self) -> None:
        store = self.store
        self.parts = [Part(shard, store.numbers(shard, "numbers").tolist(), store.texts(shard, "names"),
                           store.texts(shard, "stamps")) for shard in store.shards]

    def __len__(self) -> int:
        return sum(len(part.names) for part in self.parts)

    @property
    def numbers(self) -> np.ndarray:
        """Numbers of the rows (n,) int64."""
        return np.array([number for part in self.parts for number in part.numbers], np.int64)

    @property
    def names(self) -> list[str]:
        return [name for part in self.parts for name in part.names]

    def features(self) -> Stack:
        return self.store.features([part.shard for part in self.parts])

    def add(self, numbers: list[int], names: list[str], stamps: list[str], features: np.ndarray) -> None:
        """Write a part with features (n, D), which counts from `commit` on. Raises `UserError`."""
        part = Part(f"shard-{secrets.token_hex(8)}{SUFFIX}", numbers, names, stamps)
        self.store.write(part.shard, features, {"numbers": np.array(numbers), "names": names, "stamps": stamps})
        self.parts.append(part)

    def append(self, names: list[str], stamps: list[str], features: np.ndarray) -> None:
        """Add triplets and their features (n, D) to the last part where it has room for them, else as a new one."""
        numbers = list(range(self.store.record["next"], self.store.record["next"] + len(names)))
        self.store.record["next"] += len(names)
        if self.parts and len(self.parts[-1].names) + len(names) <= SHARD_ROWS:
            last = self.parts.pop()
            features = np.concatenate([self._features_of(last), features])
            numbers, names, stamps = last.numbers + numbers, last.names + names, last.stamps + stamps
        self.add(numbers, names, stamps, features)
        self.commit()

    def drop(self, stamps: Mapping[str, str]) -> None:
        """Drop the triplets whose files are not as in `stamps`, by name: the parts that have some are written anew."""
        for part in list(self.parts):
            kept = [stamps.get(name) == stamp for name, stamp in zip(part.names, part.stamps, strict=True)]
            if not all(kept):
                self.parts.remove(part)
                if any(kept):
                    self.add(list(compress(part.numbers, kept)), list(compress(part.names, kept)),
                             list(compress(part.stamps, kept)), self._features_of(part)[kept])
        self.commit()

    def commit(self) -> None:
        """Make what is written count. Raises `UserError`."""
        self.store.shards = [part.shard for part in self.parts]
        self.store.commit(list(self.store.record["faiss"].values()))

    def _features_of(self, part: Part) -> np.ndarray:
        return self.store.features([part.shard]).take(np.arange(len(part.names)))


def extraction(reid: Extractor, pattern: int) -> Extract:
    """`Extractor.features` of triplets, of the mean camera; each of several processes computes a share of them."""
    def features(triplets: Sequence[Triplet]) -> np.ndarray:
        return reid.features(*zip(*(triplet.paths for triplet in triplets), strict=True), pattern=pattern)

    def extract(triplets: Sequence[Triplet]) -> tuple[np.ndarray, dict[str, str]]:
        own, unread = shard_for_rank(triplets), {}
        try:
            rows = features(own)
        except UserError:
            unread = unreadable(sorted({path for triplet in own for path in triplet.paths if path}))
            if not unread:
                raise
            readable = are_readable(own, unread)
            rows = np.zeros((len(own), reid.widths[pattern]), np.float32)
            if readable.any():
                rows[readable] = features(list(compress(own, readable)))
        found = all_gather_rows(torch.from_numpy(rows), len(triplets)).numpy()
        unread_by_all = {path: reason for part in all_gather_object(unread) for path, reason in part.items()}
        return found[are_readable(triplets, unread_by_all)], unread_by_all

    return extract


def are_readable(triplets: Sequence[Triplet], unread: Mapping[str, str]) -> np.ndarray:
    """For each triplet whether none of its images is in `unread`, (n,) bool."""
    return np.array([unread.keys().isdisjoint(triplet.paths) for triplet in triplets])


def check_read(unread: Mapping[str, str], advice: str) -> None:
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
    return json.loads(json.dumps({"checkpoint_sha256": sha256(cfg.TEST.WEIGHT), "return_pattern": pattern,
                                  "configuration": used}))


def open_index(folder: Path, gallery: Path, origin: dict[str, Any], rebuild: bool) -> Index:
    """The index in a folder, or a new one, which with `rebuild` replaces another one at its first `commit`.

    Raises `UserError` for one that is damaged, or of another gallery, checkpoint or configuration.
    """
    place = str(gallery.resolve())
    if rebuild:
        check_own(folder)
    store = None if rebuild else open_store(folder, REBUILD)
    if store is None:
        return Index(Store(folder, origin, REBUILD, {"gallery": place, "next": 0, "faiss": {}, "recall": {}}))
    check_origin(store, origin)
    if store.record["gallery"] != place and Path(store.record["gallery"]).exists():
        raise UserError(f"The index {folder} is of the gallery {store.record['gallery']}, not of {gallery}; {REBUILD}.")
    store.record["gallery"] = place  # where its folder is gone, it has moved
    return Index(store)


def update(index: Index | None, triplets: Sequence[Triplet], extract: Extract) -> Changes:
    """Bring an index up to date with its gallery. Triplets that are new or changed are extracted, `SHARD_ROWS` at a time.

    Each of these parts counts as soon as it is written, so an interrupted update continues there. Several processes extract
    together; the main one has the index, the others None. Raises `UserError` as `Extractor.features` and `Index.commit`, and
    at the end for images that cannot be read: the index has all other triplets then.
    """
    changes, parts = broadcast_from_main(lambda: _plan(index, triplets) if index is not None else (Changes(0, 0, 0), []))
    unread: dict[str, str] = {}
    with progress(total=sum(map(len, parts)), desc="indexing", unit="triplet") as bar:
        for part in parts:
            chunk = [triplets[row] for row in part]
            stamps = [triplet.stamp() for triplet in chunk] if index is not None else []  # before the images are read
            features, missing = extract(chunk)
            unread |= missing
            if index is not None and len(features):
                readable = are_readable(chunk, missing)
                index.append([triplet.name for triplet in compress(chunk, readable)], list(compress(stamps, readable)),
                             features)
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
        index.drop(stamps)
    room = SHARD_ROWS - len(index.parts[-1].names) if index.parts else 0
    starts = [0, *range(room or SHARD_ROWS, len(todo), SHARD_ROWS), len(todo)]
    parts = [todo[start:stop] for start, stop in pairwise(starts) if start < stop]
    return Changes(len(todo) - changed, changed, removed), parts
