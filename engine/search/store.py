"""The index of a gallery on disk: features and files of its triplets, in a folder that is valid at any moment (docs/search.md).

The features lie in parts, files that are written once. index.json names those that count, with their digests, and is replaced
atomically after they are written; what it does not name is left over from an interruption, and removed by the next writer.
"""
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demo_sdtps.config import UserError
from demo_sdtps.config.files import atomic_write, read_json, sha256, write_json
from demo_sdtps.config.progress import progress
from demo_sdtps.engine.search.stack import Stack

MANIFEST, LOCK = "index.json", ".index.lock"
FORMAT = 1
PART_ROWS = 4096
FEATURES, FILES, FAISS = ".npy", ".json", ".faiss"
OWN = re.compile(r"\.?(part|ivfpq|hnsw)-[0-9a-f]{16}\.(npy|json|faiss)(\.[0-9a-f]{16}\.part)?|"
                 r"\.index\.json\.[0-9a-f]{16}\.part")
"""Names of the files of an index beside index.json, and of those that an interrupted writer leaves."""
REBUILD = "pass --rebuild to make it anew, or --index another folder"


@dataclass
class Part:
    """Some triplets of the gallery: their numbers, which nothing else in the index ever has, names, and stamps of their files
    (`Triplet.stamp`)."""

    stem: str
    numbers: list[int]
    names: list[str]
    stamps: list[str]


@dataclass
class Index:
    """An index in `folder`; `origin` is what its features depend on, `gallery` the folder of the images, `next` the number of
    the next triplet, `faiss` the file name of each kind of approximate index (approximate.py), `digests` those of all files,
    `recall` what was measured of each kind: by how many queries, and a text; `checked` the stamps of files (`file_stamp`) when
    their digests were last compared."""

    folder: Path
    origin: dict[str, Any]
    gallery: str
    next: int = 0
    parts: list[Part] = field(default_factory=list)
    faiss: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    recall: dict[str, tuple[int, str]] = field(default_factory=dict)
    checked: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(part.names) for part in self.parts)

    @property
    def numbers(self) -> np.ndarray:
        """Numbers of the rows (n,) int64."""
        return np.array([number for part in self.parts for number in part.numbers], np.int64)

    @property
    def names(self) -> list[str]:
        return [name for part in self.parts for name in part.names]

    def features(self, parts: Sequence[Part] | None = None) -> Stack:
        """The features of all triplets, or of some parts."""
        parts = self.parts if parts is None else parts
        return Stack([len(part.names) for part in parts],
                     lambda number: np.load(self.folder / (parts[number].stem + FEATURES), mmap_mode="r"))

    def new_numbers(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    def add(self, numbers: list[int], names: list[str], stamps: list[str], features: np.ndarray) -> None:
        """Write a part with features (n, D), which counts from `commit` on. Raises `UserError`."""
        part = Part(new_name("part"), numbers, names, stamps)
        with self.writing(part.stem + FEATURES) as path, open(path, "wb") as file:
            np.save(file, features)
        with self.writing(part.stem + FILES) as path:
            path.write_text(json.dumps({"numbers": numbers, "names": names, "stamps": stamps}), encoding="utf-8")
        self.parts.append(part)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Path of a new file of the index, which counts from `commit` on. Raises `UserError` where it cannot be written."""
        with atomic_write(self.folder / name) as path:
            yield path
            self.digests[name] = sha256(path)

    def commit(self) -> None:
        """Make what is written count, and remove what no longer does. Raises `UserError`."""
        named = {part.stem + suffix for part in self.parts for suffix in (FEATURES, FILES)} | set(self.faiss.values())
        self.digests, self.checked = ({name: text for name, text in found.items() if name in named}
                                      for found in (self.digests, self.checked))
        content = {"format": FORMAT, "origin": self.origin, "gallery": self.gallery, "next": self.next,
                   "parts": [part.stem for part in self.parts], "faiss": self.faiss, "digests": self.digests,
                   "recall": self.recall, "checked": self.checked}
        write_json(self.folder / MANIFEST, {"digest": _digest(content), **content})
        for path in self.folder.iterdir():
            if OWN.fullmatch(path.name) and path.name not in named:
                with suppress(OSError):  # another program may have it open
                    path.unlink()


def new_name(kind: str, suffix: str = "") -> str:
    """Name of a new file of an index."""
    return f"{kind}-{secrets.token_hex(8)}{suffix}"


def read_index(folder: Path) -> Index | None:
    """The index in a folder, without a look at its parts (`check_files`); None where there is none.

    Raises `UserError` for a damaged index.json, one of another version, and a folder of other files.
    """
    file = folder / MANIFEST
    if not file.exists():
        if folder.exists() and (not folder.is_dir() or any(not OWN.fullmatch(path.name) and path.name != LOCK
                                                           for path in folder.iterdir())):
            raise UserError(f"The index {folder} is no folder of an index, but has other files; give --index another folder.")
        return None
    content = read_json(file)
    if not isinstance(content, dict) or content.pop("digest", None) != _digest(content):
        raise _damaged(file)
    if content["format"] != FORMAT:
        raise UserError(f"The index {folder} is of version {content['format']}, but this program writes version {FORMAT}; "
                        f"{REBUILD}.")
    parts = [Part(stem, [], [], []) for stem in content["parts"]]
    return Index(folder, content["origin"], content["gallery"], content["next"], parts,
                 *(content.get(name, {}) for name in ("faiss", "digests", "recall", "checked")))


def check_files(index: Index, kind: str) -> None:
    """Read the triplets of the parts, and compare the digests of all files but approximate indices other than `kind`; those
    that have not changed since they were last compared are left out.

    Raises `UserError` naming the first file that is missing or damaged.
    """
    started = time.time_ns()
    paths = [index.folder / name for name in index.digests if not name.endswith(FAISS) or name == index.faiss.get(kind)]
    stamps = {path: _or_none(file_stamp, path) for path in paths}
    changed = [path for path in paths if stamps[path] is None or stamps[path] != index.checked.get(path.name)]
    with ThreadPoolExecutor() as pool:
        digests = pool.map(partial(_or_none, sha256), changed)
        for path, digest in zip(changed, progress(digests, "checking the index", len(changed), unit="file"), strict=True):
            if digest != index.digests[path.name]:
                raise _damaged(path)
    settled = {path.name: stamp for path in changed if (stamp := stamps[path]) and is_settled(stamp, started)}
    if settled:
        index.checked |= settled
        with suppress(UserError):  # a folder that cannot be written costs time only
            index.commit()
    for part in index.parts:
        content = json.loads((index.folder / (part.stem + FILES)).read_bytes())
        part.numbers, part.names, part.stamps = content["numbers"], content["names"], content["stamps"]


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _or_none(read: Callable[[Path], str], path: Path) -> str | None:
    """None for a file that cannot be read."""
    try:
        return read(path)
    except OSError:
        return None


def _damaged(path: Path) -> UserError:
    what = "is damaged: it is not as it was written" if path.exists() else "is missing"
    return UserError(f"The file {path} of the index {what}; {REBUILD}.")


def file_stamp(path: str | Path) -> str:
    """What changes when a file does: its inode, size in bytes, and times of modification and of status change in nanoseconds;
    of the target where it is a link."""
    found = os.stat(path)
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def is_settled(stamp: str, now: int) -> bool:
    """Whether a `file_stamp` is old enough at `now`, in nanoseconds, that a later change of the file alters it."""
    return max(map(int, stamp.split()[2:])) < now - 2_000_000_000
