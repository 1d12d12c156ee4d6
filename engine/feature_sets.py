"""Exported features, read block by block: a file of export_features.py, or a folder of its shards (docs/scale.md)."""
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from demo_sdtps.config import UserError
from demo_sdtps.engine.search.stack import Stack
from demo_sdtps.engine.shards import Shards, file_of, open_shards

BLOCK_ELEMENTS = 1 << 23  # numbers of the features that are in memory at a time, 4 bytes each
NORMALISED = "normalisation"  # in `FeatureSet.origin`: whether the features were of length 1 when they were exported
SMALLEST = 1e-12  # length by which shorter features are divided, as torch's normalisation does
FORMAT_ERRORS = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class FeatureSet:
    """Features of n samples as float32 in blocks; `ids`, `cams` and `scenes` (n,) int64, `names` the first path of each sample.

    `origin` has what features must share to be compared: return pattern, and digest of the checkpoint; `configuration` has the
    keys on which they depend, and is empty where it was not recorded.
    """

    place: Path
    origin: dict[str, object]
    configuration: Mapping[str, Any]
    features: Stack
    ids: np.ndarray
    cams: np.ndarray
    scenes: np.ndarray
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.features)


class Names(Sequence):
    """The first path of each row of shards, read when it is asked for."""

    def __init__(self, shards: Shards):
        self.starts = shards.starts
        self.paths = lru_cache(maxsize=16)(shards.paths)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, row):
        number = int(np.searchsorted(self.starts, row, "right")) - 1
        return os.fsdecode(bytes(self.paths(number)[row - self.starts[number], 0]))


class ShardStack(Stack):
    """The features of shards, read rather than mapped, so that memory does not grow with the gallery; `prepare` is applied to
    each block (rows, D)."""

    def __init__(self, shards: Shards, prepare: Callable[[np.ndarray, Path], np.ndarray]):
        rows = max(1, BLOCK_ELEMENTS // shards.width)
        self.blocks = [(number, start, min(start + rows, int(stop - begin)))
                       for number, (begin, stop) in enumerate(pairwise(shards.starts))
                       for start in range(0, int(stop - begin), rows)]
        self.shards, self.prepare = shards, prepare
        super().__init__([stop - start for _, start, stop in self.blocks], self.block)

    def block(self, index: int) -> np.ndarray:
        """A block of rows (rows, D) float32."""
        number, start, stop = self.blocks[index]
        return self._read(number, [(start, stop)])

    def take(self, rows: np.ndarray) -> np.ndarray:
        bounds = np.searchsorted(rows, self.shards.starts)
        return np.concatenate([self._read(number, [(row, row + 1) for row in (rows[first:last] - start).tolist()])
                               for number, (start, (first, last)) in enumerate(zip(self.shards.starts, pairwise(bounds),
                                                                                  strict=False)) if first < last])

    def _read(self, number: int, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        """Ranges of a shard's rows, one after the other. Raises `UserError`."""
        whole, path = self.shards.features(number), file_of(self.shards.folder, "features", number)
        offset, row_bytes = whole.offset, whole.strides[0]
        found = np.empty((sum(stop - start for start, stop in ranges), self.shards.width), whole.dtype)
        place = 0
        with open(path, "rb", buffering=0) as file:
            for start, stop in ranges:
                file.seek(offset + start * row_bytes)
                part = found[place:place + stop - start].data.cast("B")
                while len(part):
                    count = file.readinto(part)
                    if not count:
                        raise UserError(f"The file {path} has become shorter while it was read; export its features again.")
                    part = part[count:]
                place += stop - start
        return self.prepare(found, path)


def open_features(place: Path, normalise: bool = True, check: bool = False) -> FeatureSet:
    """The features that export_features.py wrote to a file or folder, L2-normalised with `normalise`; with `check` the digests
    of shards are compared.

    Raises `UserError` for files that are missing, damaged or no such features, and, while blocks are read, for features that
    are not finite.
    """
    def prepare(features: np.ndarray, path: Path) -> np.ndarray:
        found = torch.from_numpy(features).float()
        lengths = torch.linalg.vector_norm(found, dim=1, keepdim=True)
        if not lengths.isfinite().all():
            raise UserError(f"The file {path} has features that are not finite, or overflow; export them again.")
        return (found.div_(lengths.clamp_min_(SMALLEST)) if normalise else found).numpy()

    if place.is_dir():
        shards = open_shards(place, check)
        origin = {"return pattern": shards.manifest["return_pattern"], "checkpoint": shards.manifest["checkpoint_sha256"],
                  NORMALISED: bool(shards.manifest.get("normalised"))}
        return FeatureSet(place, origin, _configuration(shards.manifest), ShardStack(shards, prepare), shards.ids, shards.cams,
                          shards.scenes, Names(shards))
    try:
        with np.load(place) as content:
            features, paths = content["features"], content["paths"]
            ids, cams, scenes = (content[name].astype(np.int64, casting="safe") for name in ("ids", "cams", "scenes"))
            origin = {"return pattern": int(content["return_pattern"]), "checkpoint": str(content["checkpoint_sha256"]),
                      NORMALISED: bool(content["normalised"])}
            texts = {name: str(content[name]) for name in ("data_set", "configuration") if name in content}
            configuration = _configuration({**texts, "configuration": json.loads(texts.get("configuration", "{}"))})
            fits = features.ndim == 2 and features.dtype == np.float32 and paths.ndim == 2
    except FileNotFoundError:
        raise UserError(f"The features {place} do not exist; give a file or folder that export_features.py wrote.") from None
    except (*FORMAT_ERRORS, TypeError, RecursionError):
        fits = False
    if not fits or {len(array) for array in (ids, cams, scenes, paths)} != {len(features)}:
        raise UserError(f"The file {place} is damaged, or not of export_features.py; give a file or folder that it wrote.")
    features = prepare(features, place)
    rows = max(1, BLOCK_ELEMENTS // features.shape[1])
    blocks = [features[start:start + rows] for start in range(0, len(features), rows)]
    return FeatureSet(place, origin, configuration, Stack([len(block) for block in blocks], blocks.__getitem__), ids, cams,
                      scenes, paths[:, 0].tolist())


def _configuration(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The values by key that an export has `recorded`, the data set among them; none where it has not."""
    configuration = recorded.get("configuration")
    return {"DATASETS.NAMES": recorded["data_set"], **configuration} if configuration else {}
