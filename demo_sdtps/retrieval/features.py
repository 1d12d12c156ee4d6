"""Features that know what is present in each, and the hits of a search for them."""

from collections.abc import Collection
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


def as_array(values: Any, what: str = "The features") -> np.ndarray:
    """An array of numbers, also of those of a tensor, wherever it is and of whatever type."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        is_half = values.is_floating_point() and values.itemsize < np.float32().itemsize
        values = values.float() if is_half else values
    try:
        array = np.asanyarray(values)
    except (TypeError, ValueError) as error:  # rows of several lengths, what is no array
        raise UserError(f"{what} are no array ({error}); give what features(…) returns.") from None
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{what} are of the type {array.dtype}, but must be numbers; give what features(…) returns."
        )
    return array


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


class Features(np.ndarray):
    """Features (n, D) float32 of triplets, an array that knows what is `present` in each: the sum of 1 for RGB, 2 for NI and 4
    for TI, (n,) uint8.

    It is stated for the rows, and follows them by their checksums, wherever they are moved, copied or pickled to. It is None
    where a row is none of these, as of what most operations return: `Features(values, present)` states it.
    """

    _stated: tuple[np.ndarray, np.ndarray] | None = None  # checksums of rows, and their `present`

    def __new__(cls, values: np.ndarray, present: np.ndarray) -> "Features":
        features = np.array(as_array(values), np.float32).view(cls)
        codes = as_array(present, "The codes")
        if features.ndim != 2 or codes.shape != features.shape[:1]:
            raise UserError(
                f"The features have the shape {features.shape}, and what is present in them {codes.shape}; give "
                "(n, D) and (n,)."
            )
        if not np.isin(codes, range(CODES.sum() + 1)).all():
            raise UserError(
                f"What is present are the numbers {np.unique(codes)}; give the sum of 1 for RGB, 2 for NI and 4 for TI."
            )
        codes = codes.astype(np.uint8)
        codes.setflags(write=False)  # copies share it
        features._stated = row_checks(features), codes
        return features

    def __array_finalize__(self, other: Any) -> None:
        self._stated = getattr(other, "_stated", None)

    @property
    def present(self) -> np.ndarray | None:
        if self._stated is None or self.ndim != 2:
            return None
        now, (checks, codes) = row_checks(self), self._stated
        if np.array_equal(now, checks):
            return codes
        stated: dict[int, set[int]] = {}
        for check, code in zip(checks.tolist(), codes.tolist(), strict=True):
            stated.setdefault(check, set()).add(code)
        rows = [stated.get(check, ()) for check in now.tolist()]
        # equal rows of different triplets tell nothing
        is_known = all(len(row) == 1 for row in rows)
        return np.array([code for row in rows for code in row], np.uint8) if is_known else None

    def __getitem__(self, rows: Any) -> Any:
        chosen = super().__getitem__(rows)
        if self._stated and not isinstance(rows, tuple) and np.ndim(chosen) == 2:
            checks, codes = (column[rows] for column in self._stated)
            if np.array_equal(checks, row_checks(chosen)):  # these rows have not been moved
                chosen._stated = checks, codes
        return chosen

    def __reduce__(self) -> Any:
        present = self.present
        return super().__reduce__() if present is None else (Features, (np.asarray(self), present))


def row_checks(features: np.ndarray) -> np.ndarray:
    """Checksums (n,) uint64 of the bits of features (n, D): the sum of their 8-byte words, each times an odd number, so that a
    change of one word is always told, and of several with a probability near 1."""
    pad = -features.shape[1] * features.itemsize % 8 // features.itemsize
    features = np.pad(np.asarray(features), ((0, 0), (0, pad))) if pad else np.asarray(features)
    words = np.ascontiguousarray(features).view(np.uint64)
    factors = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return words @ (factors | np.uint64(1)) + np.uint64(0x9E3779B97F4A7C15)
