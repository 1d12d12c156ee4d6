"""Features that need not fit into the memory: blocks of rows, each read when it is needed."""
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np


class Stack:
    """Features (n, D) float32 in blocks of `sizes` rows, of which `read(i)` gives one, (sizes[i], D)."""

    def __init__(self, sizes: Sequence[int], read: Callable[[int], np.ndarray]):
        self.starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.read = read

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """The first row of each block, and the block."""
        return ((int(start), self.read(number)) for number, start in enumerate(self.starts[:-1]))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The features of ascending `rows` (m,): (m, D) float32."""
        bounds = np.searchsorted(rows, self.starts)
        parts = [self.read(number)[rows[first:last] - self.starts[number]]
                 for number, (first, last) in enumerate(pairwise(bounds)) if first < last]
        return np.concatenate(parts)
