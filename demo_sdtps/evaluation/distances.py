"""The distance of features of triplets that may lack modalities, for evaluation, search and ranking (docs/method.md).

A set of modalities is a number, the sum of 1 for RGB, 2 for NI and 4 for TI; `present` (n,) uint8 has that of each triplet.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import or_

import numpy as np
import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.config.common import set_of
from demo_sdtps.datasets import Sample
from demo_sdtps.evaluation.metrics import (
    DistanceRows,
    distances_of,
    squared_distances,
    squared_lengths,
)
from demo_sdtps.evaluation.reranking import k_reciprocal
from demo_sdtps.modeling.fusion import subsets_of
from demo_sdtps.modeling.layout import make_layout

FARTHEST = 4.0  # the largest squared distance of features of length 1
COHORT, FEWEST = 1000, 30  # triplets of the gallery that distances are scaled by: at most, at least

Side = tuple[torch.Tensor, np.ndarray]
"""Features (n, D) of the queries or the gallery, and their `present` (n,)."""


@dataclass(frozen=True)
class Comparison:
    """How features are compared whose columns are, in parts of equal width, of the sets of modalities `sources`; `how` is a
    value of TEST.CROSS_MODAL_DISTANCE. `normalise`: some of the columns are L2-normalised anew. `scales` (2, 8, 8): those of a
    calibration (`Calibration.scales`), by which the distances of different sets are compared in place of `scales_of`."""

    sources: Sequence[int] = ()
    how: str = "all"
    normalise: bool = True
    scales: np.ndarray | None = None

    @property
    def complete(self) -> int:
        """The set of all modalities of the model."""
        return reduce(or_, self.sources, 0)

    def is_whole(self, present: int, other: int) -> bool:
        """Whether triplets of these two sets are compared by all columns, as they are: those that lack nothing."""
        return self.how == "all" or present == other == self.complete

    def is_defined(self, present: int, other: int) -> bool:
        """Whether triplets of these two sets have a distance."""
        has_pairs = self.how == "pairs" and min(present, other) > 0
        return has_pairs or present & other > 0 or self.how == "all"

    def needed(self, present: int, other: int) -> int:
        """The set whose columns compare triplets of these two sets: for `shared` what they have in common, else `other`."""
        return present & other if self.how == "shared" else other

    def groups(self, present: np.ndarray) -> dict[int, slice | np.ndarray]:
        """The rows of each set in `present` (n,): indices, or a slice, which copies nothing, for one set, as with `all`."""
        sets = [0] if self.how == "all" else np.unique(present).tolist()
        if len(sets) == 1:
            return {sets[0]: slice(None)}
        return {each: np.flatnonzero(present == each) for each in sets}

    def view(self, features: torch.Tensor, present: int, other: int) -> torch.Tensor:
        """What features (n, D) of the set `present` are compared by with those of the set `other`: (n, d). The distance is the
        squared Euclidean one of both sides' views.
        """
        if self.is_whole(present, other):
            return features
        parts = features.unflatten(1, (len(self.sources), -1))
        if self.how == "shared" or present == other:
            places = [n for n, source in enumerate(self.sources) if not source & ~(present & other)]
            return self._scale(parts[:, places].flatten(1))
        # the first parts are of one modality each
        count = self.complete.bit_count()
        ones, others = (
            [n for n, source in enumerate(self.sources[:count]) if source & each]
            for each in sorted((present, other))
        )
        places = [pair[present > other] for pair in product(ones, others)]
        return self._scale(parts[:, places]).flatten(1) / len(places) ** 0.5

    def _scale(self, features: torch.Tensor) -> torch.Tensor:
        return F.normalize(features, dim=-1) if self.normalise else features


def comparison_of(cfg: CfgNode, pattern: int, normalise: bool = True) -> Comparison:
    """The comparison of features of a return pattern by a model of the configuration, by TEST.CROSS_MODAL_DISTANCE."""
    names, has_sdtps = cfg.MODEL.MODALITIES, cfg.MODEL.USE_SDTPS
    subsets = list(subsets_of(names).values()) if cfg.MODEL.HDM else []
    sources = make_layout(1, names, subsets, True, has_sdtps).sources[pattern]
    return Comparison(tuple(map(set_of, sources)), cfg.TEST.CROSS_MODAL_DISTANCE, normalise)


def names_of(present: int) -> str:
    """The modalities of a set, for messages."""
    return "+".join(name for name in MODALITIES if present & set_of([name])) or "any"


def present_in(samples: Sequence[Sample], modalities: Collection[str]) -> np.ndarray:
    """`present` (n,) of samples, of the `modalities` that a model reads."""
    sets = [set_of(sample.modalities) for sample in samples]
    return np.array(sets, np.uint8) & np.uint8(set_of(modalities))


def incomparable(comparison: Comparison, query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Rows (m,) of the queries' `present` that have a distance from nothing in the gallery's."""
    others = comparison.groups(gallery)
    has_none = [
        not any(comparison.is_defined(each, other) for other in others) for each in range(8)
    ]
    return np.flatnonzero(np.array(has_none)[query])


def without_common(
    comparison: Comparison,
    query: np.ndarray,
    gallery: np.ndarray,
    *,
    setting: str = "TEST.CROSS_MODAL_DISTANCE",
) -> str:
    """A sentence, without its end, on the queries that have a distance from nothing in the gallery; "" where none is."""
    rows = incomparable(comparison, query, gallery)
    sets = ", ".join(map(names_of, np.unique(query[rows]).tolist()))
    return sets and (
        f"Queries without a modality in common with any of the gallery: {len(rows)} of {len(query)} ({sets}); "
        f"{setting} pairs compares them"
    )


def set_distances(
    comparison: Comparison,
    query: Side,
    gallery: Side,
    measure: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = squared_distances,
) -> torch.Tensor:
    """Squared distances (Q, G) float32, computed by `measure`, infinite where two sets have none."""
    (features, present), (others, other_present) = query, gallery
    pairs = list(product(*(comparison.groups(side).items() for side in (present, other_present))))
    result = None
    for (one, rows), (other, columns) in pairs:
        if not comparison.is_defined(one, other):
            continue
        block = measure(
            comparison.view(features[rows], one, other),
            comparison.view(others[columns], other, one),
        )
        if len(pairs) == 1:
            return block
        if result is None:
            result = block.new_full((len(features), len(others)), torch.inf)
        places = np.ix_(np.arange(len(features))[rows], np.arange(len(others))[columns])
        result[tuple(map(torch.from_numpy, places))] = block
    return features.new_full((len(features), len(others)), torch.inf) if result is None else result


def scales_of(
    comparison: Comparison,
    query: Side,
    present: np.ndarray,
    take: Callable[[np.ndarray], torch.Tensor],
) -> torch.Tensor | None:
    """What makes distances by different columns comparable: mean and deviation, (2, Q, 8), of each query's distances by the
    columns that it and the gallery's triplets of a set are compared by, to all triplets of the gallery that have these (at most
    COHORT, of which nearly all are of other identities); or, where the comparison has them for all these sets, its own, which
    differ by set. None where each query has one scale for the whole gallery.

    `present` (G,) is the gallery's, `take` gives its features (n, D) of ascending rows. Where fewer than FEWEST triplets have
    the columns, the scale is that of most.
    """
    sets = comparison.groups(present)
    samples: dict[int, torch.Tensor] = {}
    features, result = query[0], None
    for one, rows in comparison.groups(query[1]).items():
        needed = {
            other: comparison.needed(one, other)
            for other in sets
            if comparison.is_defined(one, other)
        }
        known = None if comparison.scales is None else comparison.scales[:, one, [*needed]]
        if known is not None and not np.isfinite(known).all():
            known = None
        if len(set(needed.values()) if known is None else needed) < 2:
            continue
        if result is None:
            result = features.new_zeros((2, len(features), 8))
            result[1] = 1
        if known is not None:
            for other, scale in zip(needed, torch.from_numpy(known).to(result).T, strict=True):
                result[:, rows, other] = scale[:, None]
            continue
        counts = {each: int((present & each == each).sum()) for each in needed.values()}
        most = max(counts, key=lambda each: counts[each])
        for other, each in needed.items():
            each = each if counts[each] >= FEWEST else most
            if each not in samples:
                have = np.flatnonzero(present & each == each)
                places = np.linspace(0, len(have) - 1, min(len(have), COHORT)).astype(int)
                samples[each] = take(have[places])
            far = squared_distances(
                comparison.view(features[rows], one, each),
                comparison.view(samples[each], each, one),
            )
            deviation, mean = torch.std_mean(far, dim=1, correction=0)
            result[:, rows, other] = torch.stack([mean, deviation.clamp_min(1e-6)])
    return result


def scaled(
    distances: torch.Tensor, scales: torch.Tensor | None, present: np.ndarray
) -> torch.Tensor:
    """Distances (Q, n) to triplets of the sets `present` (n,), or all of one (1,), by the scales (2, Q, 8) of the queries."""
    if scales is None:
        return distances
    mean, deviation = scales[:, :, present.astype(int)]
    return (distances - mean) / deviation


def rows_of_distances(comparison: Comparison, query: Side, gallery: Side) -> DistanceRows:
    """`set_distances`, some queries at a time, scaled where the gallery's sets differ (`scales_of`)."""
    (features, present), (others, other_present) = query, gallery
    sets = [[*comparison.groups(side)] for side in (present, other_present)]
    if [*map(len, sets)] == [1, 1] and comparison.is_defined(*map(min, sets)):
        # the views and their lengths once, not for every few queries
        (one,), (other,) = sets
        features, others = (
            comparison.view(features, one, other),
            comparison.view(others, other, one),
        )
        lengths = squared_lengths(others)
        return lambda rows: distances_of(features[rows], others, lengths)
    sets_of_queries = torch.from_numpy(present)  # numpy takes a tensor of one index for a number
    scales = scales_of(comparison, query, other_present, others.__getitem__)

    def rows_of(rows: slice | torch.Tensor) -> torch.Tensor:
        some = features[rows], sets_of_queries[rows].numpy()
        scales_of_rows = None if scales is None else scales[:, rows]
        return scaled(set_distances(comparison, some, gallery), scales_of_rows, other_present)

    return rows_of


def reranked(comparison: Comparison, query: Side, gallery: Side) -> torch.Tensor:
    """`k_reciprocal` by these distances, where sets that have none are as far as can be."""
    if len(comparison.groups(np.append(query[1], gallery[1]))) == 1:
        return k_reciprocal(query[0], gallery[0])

    def with_sets(features: torch.Tensor, present: np.ndarray) -> torch.Tensor:
        """Each sample's set as a further column, by which `between` knows it."""
        sets = torch.from_numpy(present).to(features)
        return torch.cat([F.normalize(features), sets[:, None]], dim=1)

    def between(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        one, other = ((side[:, :-1], side[:, -1].byte().cpu().numpy()) for side in (some, others))
        return set_distances(comparison, one, other).clamp_(0, FARTHEST)

    return k_reciprocal(with_sets(*query), with_sets(*gallery), between=between)
