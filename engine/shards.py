"""Features of a split in shards on disk, larger than the memory: memory-mapped arrays and a manifest (docs/scale.md).

A shard is written once: features-00000.npy, labels-00000.npy, paths-00000.npy, and at last its record shard-00000.json with
their digests. manifest.json, which names all shards, is written when they are complete.
"""
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demo_sdtps.config import UserError
from demo_sdtps.config.files import atomic_write, read_json, sha256, write_json
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets import Sample

MANIFEST, LOCK, FORMAT = "manifest.json", ".shards.lock", 1
ARRAYS = ("features", "labels", "paths")
LABELS = ("identity", "camera", "scene")
OWN = re.compile(rf"\.?({'|'.join(ARRAYS)})-\d{{5,}}\.npy(\.[0-9a-f]{{16}}\.part)?|"
                 r"\.?(shard-\d{5,}|manifest)\.json(\.[0-9a-f]{16}\.part)?")
"""Names of the files of an export, and of those that an interrupted one leaves."""
NAMES = {"checkpoint_sha256": "checkpoint", "samples_sha256": "data set", "return_pattern": "return pattern",
         "shard_rows": "number of rows"}
"""What errors call an entry of an origin."""
READ_ERRORS = (OSError, ValueError, EOFError)

Record = dict[str, Any]
"""Of a shard: `rows`, `width`, and `sha256`, the digest of each of its files by name."""


@dataclass(frozen=True)
class Shards:
    """Exported features: the manifest, the first row of each shard and, last, the number of rows, and labels (n,) int64."""

    folder: Path
    manifest: Mapping[str, Any]
    starts: np.ndarray
    ids: np.ndarray
    cams: np.ndarray
    scenes: np.ndarray

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def width(self) -> int:
        return self.manifest["width"]

    def features(self, number: int) -> np.memmap:
        """Features of a shard (rows, D), float32 or float16, mapped from the disk."""
        return np.load(file_of(self.folder, "features", number), mmap_mode="r")

    def paths(self, number: int) -> np.memmap:
        """Paths of a shard's images (rows, 3) or (rows, 1) as bytes, which `os.fsdecode` makes texts, mapped from the disk."""
        return np.load(file_of(self.folder, "paths", number), mmap_mode="r")


def file_of(folder: Path, what: str, number: int) -> Path:
    """An array of a shard by name, or its record."""
    return folder / f"{what}-{number:05}.{'json' if what == 'shard' else 'npy'}"


def parts(rows: int, shard_rows: int) -> list[slice]:
    """The rows of each shard."""
    return [slice(start, min(start + shard_rows, rows)) for start in range(0, rows, shard_rows)]


def samples_digest(samples: Sequence[Sample]) -> str:
    """Digest of the samples in their order: paths, labels, and sizes and times of modification of the files.

    Raises `OSError` for a file that cannot be read.
    """
    digest = hashlib.sha256()
    for sample in progress(samples, "looking at the files", unit="sample"):
        stamps = [(found.st_size, found.st_mtime_ns) for found in map(os.stat, sample.paths)]
        digest.update(f"{sample!r} {stamps}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()


def write_shard(folder: Path, number: int, features: np.ndarray, samples: Sequence[Sample], origin: Mapping) -> Record:
    """Write a shard with features (n, D) of n samples, its record last. Raises `UserError` where it cannot be written."""
    labels = np.array([[getattr(sample, name) for sample in samples] for name in LABELS], np.int64)
    paths = np.array([[os.fsencode(path) for path in sample.paths] for sample in samples])
    digests = {}
    for what, array in zip(ARRAYS, (features, labels, paths), strict=True):
        path = file_of(folder, what, number)
        with atomic_write(path) as temporary:
            with open(temporary, "wb") as file:
                np.save(file, array, allow_pickle=False)
            digests[path.name] = sha256(temporary)
    record = {"rows": len(features), "width": features.shape[1], "sha256": digests}
    content = {**record, "origin": origin}
    write_json(file_of(folder, "shard", number), {"digest": _digest(content), **content})
    return record


def write_manifest(folder: Path, origin: Mapping, about: Mapping, records: Sequence[Record]) -> None:
    """Write the manifest: `origin`, which features depend on, what else is said `about` them, and the shards. Raises
    `UserError`, also where a file of theirs is missing."""
    for path in (folder / name for record in records for name in record["sha256"]):
        if not path.exists():
            raise _damaged(path)
    content = {"format": FORMAT, **about, **origin, "width": records[0]["width"], "shards": list(records)}
    write_json(folder / MANIFEST, {"digest": _digest(content), **content})


def find_shards(folder: Path, origin: Mapping[str, Any], count: int) -> list[Record | None]:
    """The records of the `count` shards of an export that are complete, by number; None for one to be written.

    What an interrupted export has left beside them is removed. Raises `UserError` for a folder of other files, and for shards
    of another origin.
    """
    if not folder.exists():
        return [None] * count
    check_own(folder)
    found: list[Record | None] = [None] * count
    for path in sorted(folder.glob("shard-*.json")):
        record, number = read_json(path), int(path.stem.partition("-")[2])
        if not isinstance(record, dict) or record.pop("digest", None) != _digest(record):
            continue
        _check_origin(folder, record.pop("origin"), origin)
        if number < count and [*record["sha256"]] == [file_of(folder, what, number).name for what in ARRAYS]:
            found[number] = record
    for path in _own_files(folder):
        if path.suffix == ".part":
            with suppress(OSError):
                path.unlink()
    with ThreadPoolExecutor() as pool:
        done = pool.map(lambda record: bool(record) and not _first_damaged(folder, record), found)
        return [record if is_done else None
                for record, is_done in zip(found, progress(done, "checking shards", count, unit="shard"), strict=True)]


def remove_shards(folder: Path) -> None:
    """Remove the files of an export, records and manifest first. Raises `UserError` for a folder of other files."""
    if folder.exists():
        check_own(folder)
        for path in sorted(_own_files(folder), key=lambda path: path.suffix != ".json"):
            path.unlink()


def check_own(folder: Path) -> None:
    """Raise `UserError` for a folder that has files other than those of an export, or is none."""
    other = folder.is_dir() and next((path for path in sorted(folder.iterdir())
                                      if path.name != LOCK and not OWN.fullmatch(path.name)), None)
    if not folder.is_dir() or other:
        what = f"has other files such as {other.name}" if other else "is no folder"
        raise UserError(f"The output {folder} {what}; with --shards give a new folder, or that of an earlier export.")


def open_shards(folder: Path, check: bool = False) -> Shards:
    """The exported features in a folder, whose files have the sizes and types of the manifest; with `check` their digests too.

    Labels are read; features and paths stay on the disk. Raises `UserError` for an export that is missing or not complete, and
    for the first file that is missing or damaged.
    """
    content = read_json(folder / MANIFEST)
    if not (folder / MANIFEST).exists():
        if any(folder.glob("shard-*.json")):
            raise UserError(f"The export in {folder} is not complete (it has no {MANIFEST}); run its command again, which goes "
                            "on where it stopped.")
        raise UserError(f"The folder {folder} has no {MANIFEST}, so it holds no features; give one that export_features.py "
                        "--shards wrote.")
    if not isinstance(content, dict) or content.pop("digest", None) != _digest(content):
        raise _damaged(folder / MANIFEST)
    if content["format"] != FORMAT:
        raise UserError(f"The features in {folder} are of format {content['format']}, but this program reads format {FORMAT}; "
                        "export them again.")
    records = content["shards"]
    if check:
        with ThreadPoolExecutor() as pool:
            found = pool.map(lambda record: _first_damaged(folder, record), records)
            for path in progress(found, "checking shards", len(records), unit="shard"):
                if path:
                    raise _damaged(path)
    labels = list(_labels(folder, content))
    starts = np.cumsum([0, *(record["rows"] for record in records)], dtype=np.int64)
    return Shards(folder, content, starts, *np.concatenate(labels, axis=1))


def _labels(folder: Path, manifest: Mapping[str, Any]) -> Iterator[np.ndarray]:
    """Labels of each shard (3, rows). Raises `UserError` for an array of another size or type than the manifest's."""
    for number, record in enumerate(manifest["shards"]):
        rows = record["rows"]
        expected = {"features": (rows, manifest["width"]), "labels": (len(LABELS), rows)}
        for what in ARRAYS:
            path = file_of(folder, what, number)
            try:
                array = np.load(path, mmap_mode="r")
                whole = array.offset + array.nbytes == path.stat().st_size
            except READ_ERRORS:
                raise _damaged(path) from None
            dtype = {"features": manifest["dtype"], "labels": "int64"}.get(what, array.dtype)
            if not whole or array.shape != expected.get(what, (rows, *array.shape[1:])) or array.dtype != dtype:
                raise _damaged(path)
            if what == "labels":
                yield np.array(array)


def _check_origin(folder: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `UserError` naming the first entry in which the origins of features differ."""
    was, now = ({**origin, **origin.get("configuration", {}), "configuration": None} for origin in (was, now))
    for name in {**now, **was}:
        if was.get(name) != now.get(name):
            values = "" if name.endswith("sha256") else f" ({was.get(name)!r}, not {now.get(name)!r})"
            what = NAMES.get(name, name)
            raise UserError(f"The output {folder} has shards of another {what}{values}; choose another folder, or pass "
                            "--overwrite to export all of them anew.")


def _first_damaged(folder: Path, record: Record) -> Path | None:
    """The first file of a shard that is missing or not as it was written."""
    for name, digest in record["sha256"].items():
        try:
            if sha256(folder / name) != digest:
                return folder / name
        except OSError:
            return folder / name
    return None


def _own_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if OWN.fullmatch(path.name)]


def _digest(content: Mapping) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path) -> UserError:
    what = "is damaged: it is not as it was written" if path.exists() else "is missing"
    return UserError(f"The file {path} of exported features {what}; run the export again, which writes its shard anew.")
