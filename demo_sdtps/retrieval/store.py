"""Features on the disk, which need not fit into the memory: the index of demo-sdtps search, and shards of demo-sdtps export.

A `Store` is a folder to which rows are appended; `FeatureBlocks` reads its features block by block, or by rows; a `Gallery` has
what a search needs: features, present modalities and names.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from demo_sdtps.config import UserError
from demo_sdtps.runtime.files import atomic_write, read_json, write_json
from demo_sdtps.runtime.progress import progress

MANIFEST, LOCK, FORMAT = "store.json", ".store.lock", 2
FEATURES = "features"
READ_ELEMENTS = 1 << 23  # numbers of the features that are in memory at a time, 4 bytes each
STORE_FILES = re.compile(
    r"\.?(store\.json|(shard|features|ivfpq|hnsw)-[0-9a-f]{5,}\.(safetensors|faiss))(\..*\.part)?"
)
"""Names of the files of a store, and of those that an interrupted writer leaves."""

Columns = Mapping[str, np.ndarray | Sequence[str]]
"""By name, a number or a text for each row."""
Read = Callable[[int, slice | np.ndarray], np.ndarray]
"""Features (m, D) of a shard, by its number, at a slice or ascending indices of its rows."""


class FeatureBlocks:
    """Features (n, D) in shards of `sizes` rows, which are read when they are asked for. `rows` (n,) are their ascending
    indices, which those of a `view` keep; `name` is that of a view."""

    def __init__(self, sizes: Sequence[int], width: int, read: Read):
        self.starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.width, self.read, self.name = width, read, ""
        self.rows = np.arange(self.starts[-1])

    def view(
        self, rows: slice | np.ndarray, columns: Callable[[torch.Tensor], torch.Tensor], name: str
    ) -> "FeatureBlocks":
        """The features of some rows, by ascending indices (m,) or a slice, in the columns (m, d) that `columns` takes or
        computes of (m, D)."""
        view = copy(self)
        view.name, view.rows = name, self.rows[rows]
        view.read = lambda *place: columns(torch.from_numpy(self.read(*place))).numpy()
        view.width = columns(torch.empty(0, self.width)).shape[1]
        return view

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, title: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All features, at most `READ_ELEMENTS` numbers at a time, with a progress bar: indices (m,) and features (m, D)."""
        step, sizes = max(1, READ_ELEMENTS // self.width), np.diff(self.starts).tolist()
        slices = [
            (shard, slice(start, min(start + step, size)))
            for shard, size in enumerate(sizes)
            for start in range(0, size, step)
        ]
        for shard, place in progress(slices, title, unit="block"):
            start, stop = self.starts[shard] + (place.start, place.stop)
            rows = self.rows[slice(*np.searchsorted(self.rows, [start, stop]))]
            if len(rows):
                block = self.read(shard, place)
                yield rows, block if len(rows) == len(block) else block[rows - start]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The features (m, D) of the rows of ascending indices (m,)."""
        bounds = np.searchsorted(rows, self.starts)
        blocks = [
            self.read(shard, rows[first:last] - self.starts[shard])
            for shard, (first, last) in enumerate(pairwise(bounds))
            if first < last
        ]
        return np.concatenate(blocks)


class Texts(Sequence[str]):
    """A text for each of n rows, which is read when it is asked for; of several in a row, separated by zeros, the first.

    `starts` are the first row of each shard, and n; `read(shard, rows)` returns bytes (m, width) padded by zeros."""

    def __init__(self, starts: np.ndarray, read: Callable[[int, slice], np.ndarray]):
        self.starts, self.read = starts, read

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, row):
        shard = int(np.searchsorted(self.starts, row, "right")) - 1
        place = int(row - self.starts[shard])
        return next(self._decode(shard, slice(place, place + 1)))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(self._decode, range(len(self.starts) - 1)))

    def _decode(self, shard: int, rows: slice = slice(None)) -> Iterator[str]:
        for text in self.read(shard, rows):
            yield os.fsdecode(bytes(text).strip(b"\0").split(b"\0")[0])


@dataclass(frozen=True)
class Gallery:
    """Features of n triplets, which of MODALITIES are `present` in each, (n, 3) bool, and their names."""

    features: FeatureBlocks
    present: np.ndarray
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.features)

    def take(self, rows: np.ndarray) -> torch.Tensor:
        """The features (m, D) float32 of the rows of ascending indices (m,)."""
        return torch.from_numpy(self.features.take(rows))


@dataclass
class Store:
    """n rows of features (D,) and of columns, in a folder: `shards` are safetensors files of some rows each, in order.

    `origin` is what the features depend on, `record` what else the writer keeps, `advice` the end of the sentences on a store
    that cannot be used. A reader sees what `commit` has written.
    """

    folder: Path
    origin: dict[str, Any]
    advice: str
    record: dict[str, Any] = field(default_factory=dict)
    shards: list[str] = field(default_factory=list)

    def write(self, shard: str, features: np.ndarray, columns: Columns) -> None:
        """Write the file of a shard, which `shards` may name then: features (m, D) and columns of m rows."""
        arrays = {FEATURES: features}
        for name, column in columns.items():
            if not isinstance(column, np.ndarray):  # texts as bytes (m, width), padded by zeros
                texts = np.array([os.fsencode(text) for text in column])
                column = texts.view(np.uint8).reshape(len(texts), -1)
            arrays[name] = column
        with atomic_write(self.folder / shard) as path:
            path.write_bytes(save(arrays))

    def append(self, features: np.ndarray, columns: Columns) -> None:
        """Add m rows: features (m, D) and columns, as a new shard."""
        self.shards.append(f"shard-{secrets.token_hex(8)}.safetensors")
        self.write(self.shards[-1], features, columns)

    def keep(self, mask: np.ndarray) -> None:
        """Drop the rows where `mask` (n,) is False: a shard that has some is written anew without them."""
        before, self.shards = self.shards, []
        for shard in before:
            with self._open(shard) as file:
                columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            kept, mask = np.split(mask, [len(columns[FEATURES])])
            if kept.all():
                self.shards.append(shard)
            elif kept.any():
                columns = {name: column[kept] for name, column in columns.items()}
                self.append(columns.pop(FEATURES), columns)

    def commit(self) -> None:
        """Write store.json, by which the rows of `shards` and the record count, and remove files that it does not name."""
        content = {"origin": self.origin, "record": self.record, "shards": self.shards}
        write_json(self.folder / MANIFEST, {"format": FORMAT} | content)
        approximate = self.record.get("approximate", {}).values()
        current = {MANIFEST, *self.shards, *(index["file"] for index in approximate)}
        for path in self.folder.iterdir():
            if STORE_FILES.fullmatch(path.name) and path.name not in current:
                with suppress(OSError):  # another program may have it open
                    path.unlink()

    def numbers(self, column: str) -> np.ndarray:
        """A column of numbers (n,)."""
        return np.concatenate([self._read(shard, column) for shard in range(len(self.shards))])

    def texts(self, column: str) -> Texts:
        """A column of texts (n,)."""
        return Texts(self.features().starts, lambda shard, rows: self._read(shard, column, rows))

    def features(self, prepare: Callable[[np.ndarray], np.ndarray] = np.asarray) -> FeatureBlocks:
        """The features (n, D), what is read of them changed by `prepare`, (m, D) → (m, D)."""

        def read(shard: int, rows: slice | np.ndarray) -> np.ndarray:
            with self._open(self.shards[shard]) as file:
                features = file.get_slice(FEATURES)
                if isinstance(rows, slice):
                    return prepare(features[rows])
                runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
                slices = [features[int(run[0]) : int(run[-1]) + 1] for run in runs]
                return prepare(np.concatenate(slices))

        shapes = [self.shape(shard) for shard in self.shards]
        return FeatureBlocks([rows for rows, _ in shapes], shapes[0][1] if shapes else 1, read)

    def shape(self, shard: str) -> tuple[int, int]:
        """Rows and width of the features of a shard. Raises `UserError` where it is missing or damaged."""
        with self._open(shard) as file:
            return tuple(file.get_slice(FEATURES).get_shape())

    def _read(self, shard: int, column: str, rows: slice = slice(None)) -> np.ndarray:
        with self._open(self.shards[shard]) as file:
            return file.get_slice(column)[rows]

    @contextmanager
    def _open(self, shard: str) -> Iterator[Any]:
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
