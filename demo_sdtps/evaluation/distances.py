"""The distance of features of triplets that may lack modalities, for evaluation, search and ranking (docs/method.md).

A set of modalities is a number, the sum of 1 for RGB, 2 for NI and 4 for TI; `present` (n,) uint8 has that of each triplet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import or_
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.metrics import (
    DistanceRows,
    distances_of,
    squared_distances,
    squared_lengths,
)
from demo_sdtps.evaluation.reranking import k_reciprocal
from demo_sdtps.modeling.fusion import subsets_of
from demo_sdtps.modeling.layout import sources_of

PADDING = 8
"""Columns that `pairs` adds: a multiple of 8 lets IVF-PQ divide the width."""

FARTHEST = 4.0
"""The largest squared distance of features of length 1."""

Side = tuple[torch.Tensor, np.ndarray]
"""Features (n, D) of the queries or the gallery, and their `present` (n,)."""


class HasModalities(Protocol):
    """A sample or a triplet of own images."""

    @property
    def modalities(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Comparison:
    """How features are compared whose columns are, in parts of equal width, of the sets of modalities `sources`; `how` is a
    value of TEST.CROSS_MODAL_DISTANCE. `normalise`: some of the columns are L2-normalised anew."""

    sources: Sequence[int] = ()
    how: str = "shared"
    normalise: bool = True

    def is_whole(self, present: int, other: int) -> bool:
        """Whether triplets of these two sets are compared by all columns, as they are."""
        return self.how == "all" or (present == other and present > 0)

    def is_defined(self, present: int, other: int) -> bool:
        """Whether triplets of these two sets have a distance."""
        has_pairs = self.how == "pairs" and present > 0 and other > 0
        return has_pairs or present & other > 0 or self.is_whole(present, other)

    def view(self, features: torch.Tensor, present: int, other: int) -> torch.Tensor:
        """What features (n, D) of the set `present` are compared by with those of the set `other`: (n, d). The distance is the
        squared Euclidean one of both sides' views.

        A calibration by pair of sets would be a factor of what is returned here: all distances are of these views.
        """
        if self.is_whole(present, other):
            return features
        width, rest = divmod(features.shape[1], len(self.sources) or 1)
        if rest or not self.sources:
            raise UserError(
                f"Features of {features.shape[1]} columns are not of {len(self.sources)} parts of equal width, so triplets "
                f"of {names_of(present)} and of {names_of(other)} cannot be compared; give features of this model."
            )
        parts = features.unflatten(1, (len(self.sources), width))
        if self.how == "shared":
            places = [n for n, source in enumerate(self.sources) if not source & ~(present & other)]
            return self._scale(parts[:, places].flatten(1))
        # The first parts are of one modality each. The mean over pairs of |a - b|² is |mean a - mean b|² and, on each side,
        # the mean of the squared lengths less the square of the mean; their roots are columns that the other side has as 0.
        count = reduce(or_, self.sources).bit_count()
        places = [n for n, source in enumerate(self.sources[:count]) if source & present]
        ones = self._scale(parts[:, places])
        mean = ones.mean(1)
        spread = (ones.square().sum(2).mean(1) - mean.square().sum(1)).clamp(min=0).sqrt()
        padded = F.pad(mean, (0, PADDING))
        padded[:, width + (present > other)] = spread
        return padded

    def _scale(self, features: torch.Tensor) -> torch.Tensor:
        return F.normalize(features, dim=-1) if self.normalise else features


def comparison_of(cfg: CfgNode, pattern: int, normalise: bool = True) -> Comparison:
    """The comparison of features of a return pattern by a model of the configuration, by TEST.CROSS_MODAL_DISTANCE."""
    names = cfg.MODEL.MODALITIES
    subsets = list(subsets_of(names).values()) if cfg.MODEL.HDM else []
    sources = sources_of(names, subsets, cfg.MODEL.USE_SDTPS)[pattern]
    return Comparison(tuple(map(set_of, sources)), cfg.TEST.CROSS_MODAL_DISTANCE, normalise)


def set_of(modalities: Collection[str]) -> int:
    """The number of a set of modalities."""
    return sum(1 << place for place, name in enumerate(MODALITIES) if name in modalities)


def names_of(present: int) -> str:
    """The modalities of a set, for messages."""
    return "+".join(name for name in MODALITIES if present & set_of([name])) or "nothing"


def present_in(items: Iterable[HasModalities], modalities: Collection[str]) -> np.ndarray:
    """Which of `modalities`, those that a model reads, each sample or triplet has images of: `present` (n,)."""
    sets = [set_of(item.modalities) for item in items]
    return np.array(sets, np.uint8) & np.uint8(set_of(modalities))


def groups(present: np.ndarray) -> dict[int, slice | np.ndarray]:
    """The rows of each set in `present` (n,); of a single one a slice, by which nothing is copied."""
    sets = np.unique(present).tolist()
    if len(sets) == 1:
        return {sets[0]: slice(None)}
    return {each: np.flatnonzero(present == each) for each in sets}


def lonely(comparison: Comparison, query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Rows (m,) of the queries' `present` that have a distance from nothing in the gallery's."""
    others = np.unique(gallery).tolist()
    sets = [
        each
        for each in np.unique(query).tolist()
        if not any(comparison.is_defined(each, other) for other in others)
    ]
    return np.flatnonzero(np.isin(query, sets))


def check_common(
    comparison: Comparison, query: np.ndarray, gallery: np.ndarray, names: Sequence[str]
) -> None:
    """Raise `UserError` where a query has no modality in common with any of the gallery, naming the first by `names` (Q,)."""
    rows = lonely(comparison, query, gallery)
    if len(rows) and len(gallery):
        sets = ", ".join(map(names_of, np.unique(gallery).tolist()))
        raise UserError(
            f"The query {names[rows[0]]} has images of {names_of(query[rows[0]])} alone, and all of the gallery of others "
            f"({sets}), so they have no distance (queries like it: {len(rows)}); leave it out, or compare by "
            "TEST.CROSS_MODAL_DISTANCE pairs."
        )


def set_distances(comparison: Comparison, query: Side, gallery: Side) -> torch.Tensor:
    """Squared distances (Q, G) float32, infinite where two sets have none."""
    (features, present), (others, other_present) = query, gallery
    pairs = list(product(groups(present).items(), groups(other_present).items()))
    result = None
    for (one, rows), (other, columns) in pairs:
        if not comparison.is_defined(one, other):
            continue
        sides = (
            comparison.view(features[rows], one, other),
            comparison.view(others[columns], other, one),
        )
        block = squared_distances(*sides)
        if len(pairs) == 1:
            return block
        if result is None:
            result = block.new_full((len(features), len(others)), torch.inf)
        places = np.ix_(np.arange(len(features))[rows], np.arange(len(others))[columns])
        result[tuple(map(torch.from_numpy, places))] = block
    return features.new_full((len(features), len(others)), torch.inf) if result is None else result


def rows_of_distances(comparison: Comparison, query: Side, gallery: Side) -> DistanceRows:
    """`set_distances`, some queries at a time."""
    (features, present), (others, other_present) = query, gallery
    sets = [np.unique(side).tolist() for side in (present, other_present)]
    if list(map(len, sets)) == [1, 1] and comparison.is_defined(*map(min, sets)):
        # the views and their lengths once, not for every few queries
        (one,), (other,) = sets
        features, others = (
            comparison.view(features, one, other),
            comparison.view(others, other, one),
        )
        lengths = squared_lengths(others)
        return lambda rows: distances_of(features[rows], others, lengths)
    return lambda rows: set_distances(comparison, (features[rows], present[rows]), gallery)


def reranked(comparison: Comparison, query: Side, gallery: Side) -> torch.Tensor:
    """`k_reciprocal` by these distances, where sets that have none are as far as can be."""
    (features, present), (others, other_present) = query, gallery
    if comparison.how == "all" or len(np.unique(np.append(present, other_present))) == 1:
        return k_reciprocal(features, others)

    def between(some: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        sides = [(side[:, :-1], side[:, -1].byte().cpu().numpy()) for side in (some, rest)]
        return set_distances(comparison, *sides).clamp_(0, FARTHEST)

    # each sample's set is a further column, by which `between` knows it
    sides = [
        torch.cat([F.normalize(side), torch.from_numpy(sets).to(side)[:, None]], dim=1)
        for side, sets in (query, gallery)
    ]
    return k_reciprocal(*sides, between=between)
