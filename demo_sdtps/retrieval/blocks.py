"""Features that need not fit into the memory, read block by block or by rows (docs/search.md)."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch

from demo_sdtps.runtime.progress import progress

READ_ELEMENTS = 1 << 21  # numbers of features in memory at a time, 4 bytes each

Take = Callable[[np.ndarray], np.ndarray]
"""Features (m, D) of the rows of ascending indices (m,)."""
Scan = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
"""All features in blocks, in any order: indices (m,) of rows, and their features (m, D)."""


class FeatureBlocks:
    """Features (n, D) float32 that are read when they are asked for, by `scan` all and by `take` some. `rows` (n,) are their
    ascending indices, which those of a `view` keep; `name` is that of a view. Rows at one distance are in the order of `ranks`
    (n,), by default that of the rows."""

    def __init__(
        self, count: int, width: int, scan: Scan, take: Take, ranks: np.ndarray | None = None
    ):
        self.rows, self.width, self.name = np.arange(count), width, ""
        self.ranks = self.rows if ranks is None else ranks
        self._count, self._scan, self._take = count, scan, take

    def view(
        self, rows: slice | np.ndarray, columns: Callable[[torch.Tensor], torch.Tensor], name: str
    ) -> "FeatureBlocks":
        """The features of some rows, by ascending indices (m,) or a slice, in the columns (m, d) that `columns` takes or
        computes of (m, D)."""

        def convert(features: np.ndarray) -> np.ndarray:
            return columns(torch.from_numpy(features)).numpy()

        view = copy(self)
        view.name, view.rows = name, self.rows[rows]
        view.width = columns(torch.empty(0, self.width)).shape[1]
        view._scan = lambda: ((places, convert(block)) for places, block in self._scan())
        view._take = lambda places: convert(self._take(places))
        return view

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, title: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All features, with a progress bar: indices (m,) and features (m, D). A small share of the rows is taken alone."""
        step = max(1, READ_ELEMENTS // self.width)
        with progress(total=len(self), desc=title, unit="row") as bar:
            if 8 * len(self) < self._count:
                for start in range(0, len(self), step):
                    rows = self.rows[start : start + step]
                    yield rows, self.take(rows)
                    bar.update(len(rows))
                return
            is_chosen = np.zeros(self._count, bool)
            is_chosen[self.rows] = True
            for rows, block in self._scan():
                chosen = is_chosen[rows]
                if not chosen.all():
                    rows, block = rows[chosen], block[chosen]
                if len(rows):
                    yield rows, block
                bar.update(len(rows))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The features (m, D) of the rows of ascending indices (m,)."""
        step = max(1, READ_ELEMENTS // self.width)
        features = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), step):
            features[start : start + step] = self._take(rows[start : start + step])
        return features


def normalise_rows(features: np.ndarray) -> np.ndarray:
    """Features (n, D) float32 of length 1, as by F.normalize."""
    tensor = torch.from_numpy(features)
    return torch.nn.functional.normalize(tensor).numpy()


def array_blocks(features: np.ndarray, ranks: np.ndarray | None = None) -> FeatureBlocks:
    """Features (n, D) in memory as blocks."""
    step = max(1, READ_ELEMENTS // features.shape[1])

    def scan() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(features), step):
            block = features[start : start + step]
            yield np.arange(start, start + len(block)), block

    count, width = features.shape
    return FeatureBlocks(count, width, scan, features.__getitem__, ranks)


@dataclass(frozen=True)
class Gallery:
    """Features of n triplets, and which of MODALITIES are `present` in each, (n, 3) bool."""

    features: FeatureBlocks
    present: np.ndarray

    def __len__(self) -> int:
        return len(self.features)

    def take(self, rows: np.ndarray) -> torch.Tensor:
        """The features (m, D) float32 of the rows of ascending indices (m,)."""
        return torch.from_numpy(self.features.take(rows))
