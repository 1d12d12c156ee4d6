"""Squared Euclidean distances of queries (Q, D) to a gallery (G, D), also of triplets that lack modalities (docs/method.md).

A set of modalities is a frozenset of their names. `present` (n, 3) bool has a column for each of MODALITIES: whether a triplet
has an image of it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, product
from math import frexp, prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets import Sample
from demo_sdtps.modeling.modalities import make_layout, modality_subsets
from demo_sdtps.runtime.progress import progress

COHORT, FEWEST = 1000, 30  # triplets that distances are standardised by: at most, at least
BLOCK_ELEMENTS = 1 << 24  # distances in a block of queries
KEPT_ELEMENTS = 1 << 26  # distances that are computed once, and kept: 256 MB

Modalities = frozenset[str]
Side = tuple[torch.Tensor, np.ndarray]
"""Features (n, D) of the queries or the gallery, and their `present` (n, 3)."""

Rows = slice | np.ndarray
"""Some of the queries, or of other samples."""
Scales = Mapping[tuple[Modalities, Modalities], tuple[Any, Any]]
"""Mean and deviation of the distances of queries to gallery samples, by the sets of both: (q, 1) each for q queries, or numbers
for all."""


def complete_side(features: torch.Tensor) -> Side:
    """The side of complete triplets, by their features (n, D)."""
    return features.detach(), np.ones((len(features), len(MODALITIES)), bool)


def squared_distances(query: torch.Tensor, gallery: torch.Tensor) -> torch.Tensor:
    """Squared Euclidean distances (Q, G) float32 of features (Q, D) and (G, D), by a product. What the queries have in common
    is subtracted from both sides first, so that a large common offset costs no precision. Equal features may differ in the last
    bit of their distances."""
    query, gallery = at_least_float32(query), at_least_float32(gallery)
    offset = common_offset(query)
    query, gallery = (query - offset).float(), (gallery - offset).float()
    lengths = gallery.square().sum(1)
    product = torch.addmm(lengths, query, gallery.T, alpha=-2)
    return product.add_(query.square().sum(1, keepdim=True))


class NotFiniteError(UserError, ValueError):
    """Features that cannot be compared: NaN, infinite, or so large that distances overflow."""


def check_finite(features: torch.Tensor, what: str = "features") -> None:
    """Raise `NotFiniteError` where features (n, D), `what` in the sentence, are not finite, or
    distances of them would not be: wherever features enter a comparison or a table."""
    lengths = torch.linalg.vector_norm(at_least_float32(features), dim=1)
    is_good = lengths < torch.finfo(torch.float32).max ** 0.5 / 2
    if not is_good.all():  # a GPU is waited for once
        rows = (~is_good).nonzero().flatten()
        raise NotFiniteError(
            f"Some {what} are not finite, or too large to be compared: {len(rows)} of {len(features)}, the first "
            f"is row {int(rows[0])} (from 0); extract them again, or leave them out."
        )


def at_least_float32(features: torch.Tensor) -> torch.Tensor:
    """Features as they are in float64, others as float32."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


@torch.no_grad()
def common_offset(features: torch.Tensor) -> torch.Tensor:
    """The mean (D,) of features (n, D) in whole multiples of the power of two above their standard
    deviation: what is smaller stays, and to subtract it rounds nothing."""
    mean = features.mean(0)
    deviation = float((features - mean).square().mean().sqrt())
    unit = 2.0 ** frexp(deviation)[1]
    return (mean / unit).round() * unit if deviation else mean


@dataclass(frozen=True)
class Comparison:
    """By which columns triplets are compared (TEST.CROSS_MODAL_DISTANCE): `how` is "all", or "shared", those made from
    modalities that both have. `sources` names the modalities that each of the features' parts, of equal width, is made from.
    With `normalise` some of the columns are L2-normalised anew. `scales` are the mean and deviation of a calibration by the
    sets of query and gallery, in place of those of `cohort_scales`."""

    sources: Sequence[Modalities] = ()
    how: str = "all"
    normalise: bool = True
    scales: Scales = field(default_factory=dict)

    @property
    def complete(self) -> Modalities:
        """The modalities of the model."""
        return frozenset[str]().union(*self.sources)

    def groups(self, present: np.ndarray) -> dict[Modalities, Rows]:
        """The rows of each set in `present` (n, 3): ascending indices, or a slice of all, without a copy, where they are of one
        set, as all are to the comparison "all"."""
        if self.how == "all":
            return {self.complete: slice(None)}
        read = [name in self.complete for name in MODALITIES]
        kinds, kind = np.unique(present & read, axis=0, return_inverse=True)
        sets = [frozenset(names_present(row)) for row in kinds]
        if len(sets) == 1:
            return {sets[0]: slice(None)}
        return {each: np.flatnonzero(kind == place) for place, each in enumerate(sets)}

    def is_defined(self, one: Modalities, other: Modalities) -> bool:
        """Whether triplets of these two sets have a distance."""
        return self.how == "all" or bool(one & other)

    def view(self, features: torch.Tensor, shared: Modalities) -> torch.Tensor:
        """The columns (n, d) of features (n, D) that triplets are compared by that share a set."""
        if shared == self.complete:
            return features
        parts = features.unflatten(1, (len(self.sources), -1))
        places = [place for place, source in enumerate(self.sources) if source <= shared]
        columns = parts[:, places].flatten(1)
        return F.normalize(columns, dim=1) if self.normalise else columns


def make_comparison(cfg: CfgNode, pattern: int, normalise: bool = True) -> Comparison:
    """The comparison of features of a return pattern by a model of the configuration."""
    names, has_sdtps = cfg.MODEL.MODALITIES, cfg.MODEL.USE_SDTPS
    subsets = list(modality_subsets(names).values()) if cfg.MODEL.HDM else []
    sources = make_layout(1, names, subsets, True, has_sdtps).sources[pattern]
    return Comparison(tuple(map(frozenset, sources)), cfg.TEST.CROSS_MODAL_DISTANCE, normalise)


def names_present(row: np.ndarray) -> list[str]:
    """The modalities of a row of `present`."""
    return list(compress(MODALITIES, row))


def set_name(modalities: Collection[str]) -> str:
    """A set of modalities as text: RGB+TI."""
    return "+".join(name for name in MODALITIES if name in modalities)


def present_modalities(samples: Sequence[Sample], modalities: Collection[str]) -> np.ndarray:
    """`present` (n, 3) of samples, of the `modalities` that a model reads."""
    rows = [
        [name in modalities and name in sample.modalities for name in MODALITIES]
        for sample in samples
    ]
    return np.array(rows, bool).reshape(-1, len(MODALITIES))


def find_incomparable(comparison: Comparison, query: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Rows (m,) of the queries' `present` that have a distance from nothing in the gallery's."""
    others, has_none = comparison.groups(gallery), np.zeros(len(query), bool)
    for one, rows in comparison.groups(query).items():
        has_none[rows] = not any(comparison.is_defined(one, other) for other in others)
    return np.flatnonzero(has_none)


def describe_incomparable(comparison: Comparison, query: np.ndarray, gallery: np.ndarray) -> str:
    """A sentence, without its end, on the queries that have a distance from nothing in the gallery; "" where there is none."""
    rows = find_incomparable(comparison, query, gallery)
    names = ", ".join(sorted({set_name(names_present(row)) for row in query[rows]}))
    return names and (
        f"Queries without a modality in common with any of the gallery: {len(rows)} of "
        f"{len(query)} ({names}); TEST.CROSS_MODAL_DISTANCE all compares them"
    )


def set_distances(
    comparison: Comparison,
    query: Side,
    gallery: Side,
    measure: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = squared_distances,
    scales: Scales | None = None,
) -> torch.Tensor:
    """Distances (Q, G) float32 by `measure`, less their mean and over their deviation where there are `scales`; infinite where
    triplets share no modality. Raises `NotFiniteError`."""
    (features, present), (others, others_present) = query, gallery
    check_finite(features, "features of queries")
    check_finite(others, "features of the gallery")
    cells = product(comparison.groups(present).items(), comparison.groups(others_present).items())
    result = torch.full((len(features), len(others)), torch.inf, device=features.device)
    for (one, rows), (other, columns) in cells:
        if not comparison.is_defined(one, other):
            continue
        sides = (comparison.view(each, one & other) for each in (features[rows], others[columns]))
        block = measure(*sides)
        if scales and (one, other) in scales:
            mean, deviation = scales[one, other]
            block = (block - mean) / deviation
        if block.shape == result.shape:
            return block
        places = np.arange(len(features))[rows], np.arange(len(others))[columns]
        result[tuple(map(torch.from_numpy, np.ix_(*places)))] = block
    return result


def cohort_scales(comparison: Comparison, query: Side, gallery: Side) -> Scales:
    """What makes distances by different columns comparable: their mean and deviation, by the sets of query and gallery, where a
    query is compared by several sets of columns.

    Those of a query's distances by the shared columns to all triplets of the gallery that have them (at most COHORT, of which
    nearly all are of other identities); with fewer than FEWEST, by the columns that most have. Or those of the comparison,
    where it has them for all of these sets.
    """
    scales: dict[tuple[Modalities, Modalities], tuple[Any, Any]] = {}
    (features, queries), (others, present) = query, gallery
    cohorts, sets = {}, comparison.groups(present)
    for one, rows in comparison.groups(queries).items():
        shared = {other: one & other for other in sets if comparison.is_defined(one, other)}
        if len(shared) > 1 and all((one, other) in comparison.scales for other in shared):
            scales |= {(one, other): comparison.scales[one, other] for other in shared}
            continue
        if len(set(shared.values())) < 2:
            continue
        having = {
            each: np.flatnonzero(present[:, [name in each for name in MODALITIES]].all(axis=1))
            for each in shared.values()
        }
        most = max(having, key=lambda each: len(having[each]))
        for other, each in shared.items():
            each = each if len(having[each]) >= FEWEST else most
            if each not in cohorts:
                samples = having[each]
                places = np.linspace(0, len(samples) - 1, min(len(samples), COHORT)).astype(int)
                cohorts[each] = others[samples[places]]
            views = (comparison.view(side, each) for side in (features[rows], cohorts[each]))
            deviation, mean = torch.std_mean(
                squared_distances(*views), dim=1, correction=0, keepdim=True
            )
            scales[one, other] = mean, deviation.clamp_min(1e-6)
    return scales


@dataclass(frozen=True)
class Distances:
    """Distances (Q, G) of queries to a gallery, as they are ranked: `rows` gives those of some queries, (q, G) on the features'
    device, which must not be modified. Infinite where nothing can be compared."""

    shape: tuple[int, int]
    rows: Callable[[Rows], torch.Tensor]

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """All queries in blocks: which they are, and their distances (q, G)."""
        queries, gallery = self.shape
        size = max(1, BLOCK_ELEMENTS // max(1, gallery))
        for start in progress(range(0, queries, size), "comparing", unit="block"):
            rows = slice(start, min(start + size, queries))
            yield rows, self.rows(rows)


def matrix_distances(values: torch.Tensor) -> Distances:
    """Distances (Q, G), float32 or float64, in memory."""
    return Distances((values.shape[0], values.shape[1]), values.__getitem__)


def compute_distances(shape: tuple[int, int], measure: Callable[[Rows], torch.Tensor]) -> Distances:
    """Distances by `measure`, which computes those of some rows: a matrix where they are few, or else rows whenever they are
    asked for."""
    if prod(shape) > KEPT_ELEMENTS:
        return Distances(shape, measure)
    return matrix_distances(measure(slice(None)))


def measure_distances(comparison: Comparison, query: Side, gallery: Side) -> Distances:
    """The distances of queries to a gallery, in columns that both have; scaled where these differ."""
    features, present = query

    def measure(rows: Rows) -> torch.Tensor:
        some = features[rows], present[rows]
        scales = cohort_scales(comparison, some, gallery)
        return set_distances(comparison, some, gallery, scales=scales)

    return compute_distances((len(features), len(gallery[0])), measure)
