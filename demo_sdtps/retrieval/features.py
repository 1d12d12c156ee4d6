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


class Nearest(NamedTuple):
    """Gallery rows (Q, top) int64, nearest first, and their distances (Q, top) float32; row -1, at infinity, is none."""

    rows: np.ndarray
    distances: np.ndarray


class Hits(Nearest):
    """What `search` returns: `rows` and `distances`, a pair. Of a model with a calibration it also knows the
    `probability` (n, top) float64 that query and hit are of the same identity, nan where it is not known, and whether the hit
    `is_unknown` (n, top) bool, beyond the threshold or row -1; None without one. Of a gallery in a table they have the `names`
    (n, top), None for row -1."""

    probability: np.ndarray | None = None
    is_unknown: np.ndarray | None = None
    names: np.ndarray | None = None


class Features(np.ndarray):
    """Features (n, D) float32 of triplets, an array that knows what is `present` in each: the sum of 1 for RGB, 2 for NI and 4
    for TI, (n,) uint8.

    Some rows of it, by a slice, indices or a mask, are `Features` too. What other operations return has None as `present`, as
    arrays have none: `Features(values, present)` states it.
    """

    present: np.ndarray | None = None

    def __new__(cls, values: np.ndarray, present: np.ndarray) -> "Features":
        features = np.array(values, np.float32).view(cls)
        features.present = np.array(present, np.uint8)
        if features.ndim != 2 or features.present.shape != features.shape[:1]:
            raise UserError(
                f"The features have the shape {features.shape}, and what is present in them {features.present.shape}; give "
                "(n, D) and (n,)."
            )
        return features

    def __getitem__(self, rows: Any) -> Any:
        chosen = super().__getitem__(rows)
        if self.present is not None and not isinstance(rows, tuple) and np.ndim(chosen) == 2:
            chosen.present = self.present[rows]
        return chosen
