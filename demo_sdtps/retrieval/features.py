"""Features and what is present in each, and the hits of a search for them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from demo_sdtps.config import MODALITIES, UserError

CODES = 2 ** np.arange(len(MODALITIES), dtype=np.uint8)
"""A set of modalities in files and in `Features.present`: the sum of 1 for RGB, 2 for NI and 4 for TI."""


def modality_mask(modalities: Collection[str]) -> np.ndarray:
    """Which of MODALITIES these are, (3,) bool."""
    return np.array([name in modalities for name in MODALITIES])


def encode_present(present: np.ndarray) -> np.ndarray:
    """The code (…) uint8 of each set of modalities (…, 3) bool."""
    return present @ CODES


def decode_present(codes: Any) -> np.ndarray:
    """Which modalities (…, 3) bool the sets of these codes (…) have."""
    return (np.asarray(codes)[..., None] & CODES) > 0


def as_matrix(values: Any) -> np.ndarray:
    """Features (n, D) float32 in the order of rows that torch needs, of an array, of `Features` or of a tensor, wherever it is
    and of whatever type. Raises `UserError` for what has no numbers of this shape."""
    try:
        is_tensor = hasattr(values, "detach")  # numpy has no bfloat16
        array = np.asarray(values.detach().cpu().float() if is_tensor else values)
        is_matrix = array.ndim == 2 and array.dtype.kind in "biuf"
    except (TypeError, ValueError):
        is_matrix = False
    if not is_matrix:
        raise UserError(
            "The features are no numbers of the shape (n, D); give what features(…) returns."
        )
    return np.ascontiguousarray(array, np.float32)


@dataclass(eq=False)
class Features:
    """Features of n triplets: the `values` (n, D) float32, and what is `present` in each, (n,) uint8: the sum of 1 for RGB, 2
    for NI and 4 for TI.

    Compute with `values`; `torch.as_tensor(features.values)` is a tensor, and numpy takes the whole as the array of its values.
    `features[rows]` are those of some rows, by a slice, a mask, indices or one index; `Features.concatenate` those of several.
    `Features(values, present)` states what is present in values of one's own. Raises `UserError` for other shapes and codes.
    """

    values: np.ndarray
    present: np.ndarray

    def __post_init__(self) -> None:
        self.values, codes = as_matrix(self.values).copy(), np.asarray(self.present)
        if codes.shape != self.values.shape[:1] or not np.isin(codes, range(CODES.sum() + 1)).all():
            raise UserError(
                f"What is present in features {self.values.shape} has the shape {codes.shape} and the codes "
                f"{np.unique(codes)}; give the sum of 1 for RGB, 2 for NI and 4 for TI of each row."
            )
        self.present = codes.astype(np.uint8)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype, copy=copy)

    def __getitem__(self, rows: Any) -> "Features":
        rows = [rows] if isinstance(rows, (int, np.integer)) else rows
        return Features(self.values[rows], self.present[rows])

    def __setitem__(self, rows: Any, features: "Features") -> None:
        rows = [rows] if isinstance(rows, (int, np.integer)) else rows
        self.values[rows], self.present[rows] = features.values, features.present

    def copy(self) -> "Features":
        """Equal features in memory of their own."""
        return self[:]

    @staticmethod
    def concatenate(features: "Sequence[Features]") -> "Features":
        """The rows of several, in their order."""
        values, present = (
            [getattr(one, name) for one in features] for name in ("values", "present")
        )
        return Features(np.concatenate(values), np.concatenate(present))


class Nearest(NamedTuple):
    """Gallery rows (Q, top) int64, nearest first, and their distances (Q, top) float32; row -1, at infinity, is none."""

    rows: np.ndarray
    distances: np.ndarray


class Hits(Nearest):
    """What `search` returns: `rows` and `distances`, a pair, and the `scores` (n, top) by which they are ordered: scaled
    distances, minus the log-odds of the probability, or the distances. With a calibration the `probability` (n, top) float64
    that query and hit are of one identity, nan where it is not known, and whether the hit `is_unknown` (n, top) bool, beyond
    the threshold, and so last, or row -1. Of a gallery in a table the `names` (n, top), None for row -1."""

    scores: np.ndarray
    probability: np.ndarray | None = None
    is_unknown: np.ndarray | None = None
    names: np.ndarray | None = None
