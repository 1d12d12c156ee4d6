"""Squared Euclidean distances of queries (Q, D) to a gallery (G, D), also of triplets that lack modalities, and k-reciprocal
re-ranking with sparse matrices (docs/method.md).

A set of modalities is a frozenset of their names. `present` (n, 3) bool has a column for each of MODALITIES: whether a triplet
has an image of it. Re-ranking is that of Zhong, Zheng, Cao, Li: Re-ranking Person Re-identification with k-reciprocal Encoding,
CVPR 2017; it has N samples: the queries, then the gallery. Sparse matrices are computed on the CPU by SciPy.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, pairwise, product
from math import frexp, prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets import Sample
from demo_sdtps.modeling.modalities import make_layout, modality_subsets
from demo_sdtps.runtime.progress import progress

COHORT, FEWEST = 1000, 30  # triplets that distances are standardised by: at most, at least
BLOCK_ELEMENTS = 1 << 24  # distances in a block of queries
KEPT_ELEMENTS = 1 << 26  # distances that are computed once, and kept: 256 MB
FARTHEST = 4.0  # the largest squared distance of features of length 1

Modalities = frozenset[str]
Side = tuple[torch.Tensor, np.ndarray]
"""Features (n, D) of the queries or the gallery, and their `present` (n, 3)."""

Rows = slice | np.ndarray
"""Some of the queries, or of other samples."""
Scales = Mapping[tuple[Modalities, Modalities], tuple[Any, Any]]
"""Mean and deviation of the distances of queries to the gallery, by the sets of both: (q, 1) for q queries, or numbers."""


def complete_side(features: torch.Tensor) -> Side:
    """The side of complete triplets, by their features (n, D)."""
    return features.detach(), np.ones((len(features), len(MODALITIES)), bool)


def squared_distances(query: torch.Tensor, gallery: torch.Tensor) -> torch.Tensor:
    """Squared Euclidean distances (Q, G) float32 of features (Q, D) and (G, D), by a product. What the queries have in common
    is subtracted from both sides first, so that a common offset costs no precision. The last bit may differ for equal ones."""
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
    """The mean (D,) of features (n, D) in multiples of a power of two above their deviation: subtracting it rounds nothing."""
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
        """The rows of each set in `present` (n, 3): ascending indices, or a slice, where all are of one, as to "all"."""
        if self.how == "all":
            return {self.complete: slice(None)}
        bits = {name: 1 << place for place, name in enumerate(reversed(MODALITIES))}
        codes = present @ [bits[name] * (name in self.complete) for name in MODALITIES]
        kinds = {
            frozenset(name for name, bit in bits.items() if code & bit): codes == code
            for code in np.flatnonzero(np.bincount(codes)).tolist()
        }
        if len(kinds) == 1:
            return dict.fromkeys(kinds, slice(None))
        return {one: np.flatnonzero(is_of_it) for one, is_of_it in kinds.items()}

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
    """Distances by `measure`, which computes those of some rows: a matrix where they are few, else rows when asked for."""
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


@torch.no_grad()
def k_reciprocal(
    query_features: torch.Tensor,
    gallery_features: torch.Tensor,
    k1: int = 50,
    k2: int = 15,
    lambda_value: float = 0.3,
) -> torch.Tensor:
    """Re-ranked distances of queries (Q, D) to the gallery (G, D): (Q, G) float32, on the features' device.

    (1 - lambda_value) · Jaccard distance of the neighbourhoods + lambda_value · squared Euclidean distance over its row's
    maximum (docs/method.md). Features are L2-normalised here, as the definition requires. The neighbours of a sample are
    itself, then the others by distance, ties by index in query and gallery. k1 + 1 and k2 are limited to N. Beside the result,
    memory grows with N · k1 and the size of the neighbourhoods. Raises `NotFiniteError`.
    """
    sides = complete_side(query_features), complete_side(gallery_features)
    return rerank(Comparison(), *sides, k1, k2, lambda_value)


@torch.no_grad()
def rerank(
    comparison: Comparison,
    query: Side,
    gallery: Side,
    k1: int = 50,
    k2: int = 15,
    lambda_value: float = 0.3,
) -> torch.Tensor:
    """`k_reciprocal` by the distances of a comparison, (Q, G) float32; without a modality in common they are the largest."""
    pairs, queries = pair_distances(comparison, query, gallery), len(query[0])
    nearest, farthest = _neighbours(pairs, max(k1 + 1, k2))
    # k-reciprocal sets as ones in the rows: the neighbours of each sample that have it among theirs
    adjacent = (_matrix(nearest[:, : k + 1]) for k in (k1, round(k1 / 2)))
    wide, narrow = (each.multiply(each.T).tocsr() for each in adjacent)
    # a member's set counts as well where more than 2/3 of it is in the sample's
    joined = (wide @ narrow.T).multiply(wide).tocsr()
    joined.data *= 3 * joined.data > 2 * narrow.getnnz(axis=1)[joined.indices]
    joined.eliminate_zeros()
    weights = _weights(pairs, farthest, (wide + joined @ narrow).tocsr())
    if k2 > 1:
        members = nearest[:, :k2]
        weights = _matrix(members, 1 / members.shape[1]) @ weights
    overlap = torch.from_numpy(_overlap(weights[:queries], weights[queries:])).to(farthest.device)
    for some, distance in replace(pairs, shape=(queries, pairs.shape[1])).blocks():
        # Each row of weights sums to 1, so the maxima sum to 2 minus the minima.
        jaccard = (1 - overlap[some] / (2 - overlap[some])).clamp_(min=0)
        relative = distance[:, queries:] / farthest[some]
        overlap[some] = (1 - lambda_value) * jaccard + lambda_value * relative
    return overlap


def pair_distances(comparison: Comparison, query: Side, gallery: Side) -> Distances:
    """Distances of N samples, the queries and then the gallery, to all: (N, N) float32 from 0 to FARTHEST.

    Copies of an image in query and gallery have distance 0 from each other and equal distances to all others, whatever the
    rounding (up to the last bit for sets too large to be kept). Raises `NotFiniteError`.
    """
    features = torch.cat([query[0], gallery[0]])
    check_finite(features)
    # in double, as features that have much in common are near each other then
    features = F.normalize(features.double(), dim=1)
    present = torch.from_numpy(np.concatenate([query[1], gallery[1]])).to(features)
    samples, index = torch.cat([features, present], dim=1).unique(dim=0, return_inverse=True)
    features, present = samples.split([features.shape[1], present.shape[1]], dim=1)
    distinct = features, present.bool().cpu().numpy()

    def between(rows: Rows) -> torch.Tensor:
        """Distances of some of the M distinct samples (m,) to all of them: (m, M)."""
        some = features[rows], distinct[1][rows]
        return set_distances(comparison, some, distinct).clamp_(min=0, max=FARTHEST)

    distances = compute_distances((len(features), len(features)), between)

    def measure(rows: Rows) -> torch.Tensor:
        places = index[rows]
        distance = distances.rows(places.cpu().numpy())
        return distance.scatter_(1, places[:, None], 0).index_select(1, index)

    return Distances((len(index), len(index)), measure)


def _neighbours(pairs: Distances, count: int) -> tuple[np.ndarray, torch.Tensor]:
    """Indices of the `count` nearest of every sample (N, count), itself first, and its largest distance (N, 1)."""
    nearest, farthest = [], []
    for some, distance in pairs.blocks():
        indices = torch.arange(len(distance[0]), device=distance.device)
        farthest.append(distance.amax(1, keepdim=True))
        distance.scatter_(1, indices[some, None], -1)
        # topk breaks ties arbitrarily. The bits of floats ≥ 0, read as integers, are ordered as the floats are (those of -1
        # are negative); with the index in the lower bits the order of the keys is that of (distance, index).
        keys = distance.view(torch.int32).long().bitwise_left_shift_(32).bitwise_or_(indices)
        smallest = keys.topk(min(count, len(indices)), largest=False).values
        nearest.append(smallest.bitwise_and_(0xFFFFFFFF).cpu())
    # Equal features have distance 0, by which nothing can be divided.
    smallest_float = torch.finfo(torch.float32).tiny
    return torch.cat(nearest).numpy(), torch.cat(farthest).clamp(min=smallest_float)


def _matrix(columns: np.ndarray, value: float = 1.0) -> csr_matrix:
    """The matrix (N, N) of `value` at the columns (N, k) of each row, and zeros."""
    samples, count = columns.shape
    starts = np.arange(0, columns.size + 1, count)
    values = np.full(columns.size, value, np.float32)
    return csr_matrix((values, columns.ravel(), starts), (samples, samples))


def _weights(pairs: Distances, farthest: torch.Tensor, sets: csr_matrix) -> csr_matrix:
    """V: exp(-distance over its row's maximum) at the members of each row's set (N, N), normalised to sum 1."""
    values, row = [], np.arange(len(farthest)).repeat(np.diff(sets.indptr))
    for some, distance in pairs.blocks():
        entries = slice(*sets.indptr[[some.start, some.stop]])
        places = (
            torch.from_numpy(each[entries]).to(distance.device, torch.long)
            for each in (row - some.start, sets.indices)
        )
        relative = (distance / -farthest[some])[tuple(places)]
        values.append(relative.exp_().cpu())
    weights = csr_matrix((torch.cat(values).numpy(), sets.indices, sets.indptr), sets.shape)
    weights.data /= np.asarray(weights.sum(axis=1)).ravel()[row]
    return weights


def _overlap(query: csr_matrix, gallery: csr_matrix) -> np.ndarray:
    """Sums over the columns of the lesser of a query's (Q, N) and a gallery sample's (G, N) weight, (Q, G) float32."""
    columns = gallery.T.tocsr()
    total = np.zeros((query.shape[0], gallery.shape[0]), np.float32)
    for row, (start, stop) in zip(total, pairwise(query.indptr), strict=True):
        met = columns[query.indices[start:stop]]
        weights = query.data[start:stop].repeat(np.diff(met.indptr))
        np.add.at(row, met.indices, np.minimum(weights, met.data))
    return total
