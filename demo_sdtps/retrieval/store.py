"""One store of features: a folder of shards (safetensors), and store.json, which names those that count (docs/retrieval.md).

demo-sdtps export --shards writes a split to one, demo-sdtps search keeps a gallery in one. A shard is written once,
atomically; one that store.json does not name is left over from an interruption.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from demo_sdtps.config import UserError
from demo_sdtps.runtime.files import atomic_write, read_json, write_json

MANIFEST, LOCK, FORMAT = "store.json", ".store.lock", 2
SUFFIX, FEATURES = ".safetensors", "features"
READ_ELEMENTS = 1 << 23  # numbers of the features that are in memory at a time, 4 bytes each
STORE_FILES = re.compile(
    r"\.?(store\.json|(shard|features|ivfpq|hnsw)-[0-9a-f]{5,}\.(safetensors|faiss))(\..*\.part)?"
)
"""Names of the files of a store, and of those that an interrupted writer leaves."""


class Stack:
    """Features (n, D) that need not fit into the memory: shards of `sizes` rows, of which `read(i, slices)` gives slices of
    rows, one after the other."""

    def __init__(
        self, sizes: Sequence[int], width: int, read: Callable[[int, Sequence[slice]], np.ndarray]
    ):
        self.starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.width, self.read = width, read
        rows = max(1, READ_ELEMENTS // width)
        self.blocks = [
            (number, slice(start, min(start + rows, size)))
            for number, size in enumerate(sizes)
            for start in range(0, size, rows)
        ]
        self.name = ""
        self._subset: np.ndarray | None = None

    def view(
        self, rows: slice | np.ndarray, columns: Callable[[torch.Tensor], torch.Tensor], name: str
    ) -> "Stack":
        """Some rows, by ascending indices (m,) or a slice, in the `columns` that are made of features (…, D). They keep their
        indices, and all blocks are read."""
        view = copy(self)
        view.name, view._subset = name, self.rows[rows]
        view.read = lambda *place: columns(torch.from_numpy(self.read(*place))).numpy()
        view.width = columns(torch.empty(0, self.width)).shape[1]
        return view

    @property
    def rows(self) -> np.ndarray:
        """Ascending indices (n,)."""
        return np.arange(self.starts[-1]) if self._subset is None else self._subset

    def __len__(self) -> int:
        return int(self.starts[-1]) if self._subset is None else len(self._subset)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The indices of each block's rows (m,), and the block (m, D)."""
        for number, place in self.blocks:
            rows = np.arange(place.start, place.stop) + self.starts[number]
            block = self.read(number, [place])
            if len(self) < self.starts[-1]:
                first, (start, stop) = rows[0], np.searchsorted(self.rows, [rows[0], rows[-1] + 1])
                rows = self.rows[start:stop]
                block = block[rows - first]
            if len(rows):
                yield rows, block

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The features of ascending `rows` (m,): (m, D)."""
        bounds = np.searchsorted(rows, self.starts)
        blocks = []
        for number, (first, last) in enumerate(pairwise(bounds)):
            if first < last:
                places = rows[first:last] - self.starts[number]
                runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
                blocks.append(self.read(number, [slice(run[0], run[-1] + 1) for run in runs]))
        return np.concatenate(blocks)


@dataclass(frozen=True)
class Gallery:
    """Features of n triplets, what is `present` in each (n,) uint8 (evaluation/distances.py), and their names."""

    features: Stack
    present: np.ndarray
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.features)


@dataclass
class Store:
    """`origin` is what the features depend on, `record` what else the writer keeps, `shards` the names of the files that count;
    `advice` ends the sentences on a damaged one."""

    folder: Path
    origin: dict[str, Any]
    advice: str
    record: dict[str, Any] = field(default_factory=dict)
    shards: list[str] = field(default_factory=list)

    def write(
        self, shard: str, features: np.ndarray, columns: Mapping[str, np.ndarray | Sequence[str]]
    ) -> None:
        """Write a shard: features (n, D), and columns of n numbers or texts."""
        arrays = {FEATURES: features}
        for name, column in columns.items():
            if not isinstance(column, np.ndarray):  # as bytes (n, width), padded by zeros
                texts = np.array([os.fsencode(text) for text in column])
                column = texts.view(np.uint8).reshape(len(texts), -1)
            arrays[name] = column
        with atomic_write(self.folder / shard) as path:
            path.write_bytes(save(arrays))

    def commit(self, others: Sequence[str] = ()) -> None:
        """Make the `shards` count, and remove other files of stores but `others`."""
        content = {"origin": self.origin, "record": self.record, "shards": self.shards}
        write_json(self.folder / MANIFEST, {"format": FORMAT} | content)
        current = {MANIFEST, *self.shards, *others}
        for path in self.folder.iterdir():
            if STORE_FILES.fullmatch(path.name) and path.name not in current:
                with suppress(OSError):  # another program may have it open
                    path.unlink()

    def numbers(self, shard: str, column: str) -> np.ndarray:
        with self._open_shard(shard) as file:
            return file.get_tensor(column)

    def texts(self, shard: str, column: str, rows: slice = slice(None)) -> list[str]:
        with self._open_shard(shard) as file:
            return [os.fsdecode(bytes(row).rstrip(b"\0")) for row in file.get_slice(column)[rows]]

    def shape(self, shard: str) -> tuple[int, int]:
        """Rows and width of the features of a shard."""
        with self._open_shard(shard) as file:
            return tuple(file.get_slice(FEATURES).get_shape())

    def features(
        self,
        shards: Sequence[str] | None = None,
        prepare: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> Stack:
        """The features of all shards, or of some, as `prepare` makes them of those that are read, (rows, D)."""
        names = self.shards if shards is None else shards

        def read(number: int, slices: Sequence[slice]) -> np.ndarray:
            with self._open_shard(names[number]) as file:
                features = file.get_slice(FEATURES)
                return prepare(np.concatenate([features[rows] for rows in slices]))

        shapes = [self.shape(shard) for shard in names]
        return Stack([rows for rows, _ in shapes], shapes[0][1] if shapes else 1, read)

    @contextmanager
    def _open_shard(self, shard: str) -> Iterator[Any]:
        path = self.folder / shard
        try:
            with safe_open(path, "np") as file:
                yield file
        except (OSError, SafetensorError):
            what = "is damaged" if path.exists() else "is missing"
            raise UserError(f"The file {path} of stored features {what}; {self.advice}.") from None


def open_store(folder: Path, advice: str) -> Store | None:
    """The store in a folder, None where there is none."""
    check_store_folder(folder)
    if not (folder / MANIFEST).exists():
        return None
    content = read_json(folder / MANIFEST)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"The file {folder / MANIFEST} is damaged or of another version; {advice}.")
    return Store(folder, content["origin"], advice, content["record"], content["shards"])


def check_store_folder(folder: Path) -> None:
    """Raise `UserError` for a folder of other files than those of a store."""
    if not folder.exists():
        return
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    other = next((name for name in names if name != LOCK and not STORE_FILES.fullmatch(name)), None)
    if not folder.is_dir() or (other and MANIFEST not in names):
        what = f"has other files such as {other}" if other else "is no folder"
        raise UserError(
            f"The output {folder} {what}, so no features are stored there; choose another folder."
        )


def check_origin(store: Store, origin: Mapping[str, Any]) -> None:
    """Raise `UserError` where the features of a store depend on something else than `origin`, naming the first difference."""
    was, now = (
        {**source, **source.get("configuration", {}), "configuration": None}
        for source in (store.origin, origin)
    )
    for name in {**was, **now}:
        if was.get(name) != now.get(name):
            what = f"{name} ({was.get(name)!r}, not {now.get(name)!r})"
            if name.endswith("_sha256"):
                what = name.removesuffix("_sha256")
            raise UserError(
                f"The features in {store.folder} are of another {what}; {store.advice}."
            )
