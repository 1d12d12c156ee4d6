"""k-reciprocal re-ranking with sparse matrices (docs/method.md).

Zhong, Zheng, Cao, Li: Re-ranking Person Re-identification with k-reciprocal Encoding, CVPR 2017.
N samples: the queries, then the gallery. Distances are computed on the features' device, sparse
matrices on the CPU by SciPy.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix

from demo_sdtps.evaluation.distances import (
    KEPT_ELEMENTS,
    Comparison,
    Distances,
    Side,
    check_finite,
    matrix_distances,
    set_distances,
    squared_distances,
)
from demo_sdtps.runtime.progress import progress

BLOCK_ELEMENTS = 1 << 23
"""Distances in a block of rows; a few such tensors exist at a time, and never one of N × N beyond
`KEPT_ELEMENTS`."""
MEETINGS = 1 << 18
"""Pairs of weights that are compared at a time; they stay in the processor's cache."""
FARTHEST = 4.0  # the largest squared distance of features of length 1


@torch.no_grad()
def k_reciprocal(
    query_features: torch.Tensor,
    gallery_features: torch.Tensor,
    k1: int = 50,
    k2: int = 15,
    lambda_value: float = 0.3,
) -> torch.Tensor:
    """Re-ranked distances of queries (Q, D) to the gallery (G, D): (Q, G) float32, on the features' device.

    (1 - lambda_value) · Jaccard distance of the neighbourhoods + lambda_value · squared Euclidean
    distance over its row's maximum (docs/method.md). Features are L2-normalised here, as the
    definition requires. The neighbours of a sample are itself, then the others by distance, ties by
    index in query and gallery. k1 + 1 and k2 are limited to N. Beside the result, memory grows with
    N · k1 and the size of the neighbourhoods.
    """
    features = torch.cat([query_features, gallery_features])
    check_finite(features)
    # in double, as features that have much in common are near each other then
    samples, index = F.normalize(features.double(), dim=1).unique(dim=0, return_inverse=True)
    rows = Rows(lambda places: squared_distances(samples[places], samples), index)
    return _rerank(rows, len(query_features), k1, k2, lambda_value)


@torch.no_grad()
def rerank(comparison: Comparison, query: Side, gallery: Side) -> Distances:
    """`k_reciprocal` by the distances of a comparison; sets that share nothing are as far as can be."""
    features = torch.cat([query[0], gallery[0]])
    check_finite(features)
    features = F.normalize(features.double(), dim=1)
    present = torch.from_numpy(np.concatenate([query[1], gallery[1]])).to(features)
    samples, index = torch.cat([features, present], dim=1).unique(dim=0, return_inverse=True)
    features, present = samples.split([features.shape[1], present.shape[1]], dim=1)
    side = features, present.bool().cpu().numpy()

    def between(places: torch.Tensor) -> torch.Tensor:
        some = features[places], side[1][places.cpu().numpy()]
        return set_distances(comparison, some, side).clamp_(max=FARTHEST)

    return matrix_distances(_rerank(Rows(between, index), len(query[0])))


class Rows:
    """Distances of N samples to all, in blocks of rows: (rows, (n, N) float32, at least 0). `between` gives the distances (m,
    M) of some of the M distinct samples to all of these, `index` (N,) says which of them each sample is. Copies of an image in
    query and gallery therefore have distance 0 from each other and equal distances to all others, whatever the rounding (up to
    the last bit for sets too large to be kept)."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor], index: torch.Tensor):
        self.between, self.index = between, index
        distinct = torch.arange(int(index.max()) + 1, device=index.device)
        self.kept = between(distinct) if len(distinct) ** 2 <= KEPT_ELEMENTS else None

    def __len__(self) -> int:
        return len(self.index)

    def blocks(self, count: int, title: str) -> Iterator[tuple[slice, torch.Tensor]]:
        """Those of the first `count` samples."""
        size = max(1, BLOCK_ELEMENTS // len(self))
        for start in progress(range(0, count, size), f"re-ranking: {title}", unit="block"):
            rows = slice(start, min(start + size, count))
            places = self.index[rows]
            distance = self.between(places) if self.kept is None else self.kept[places]
            distance = distance.clamp_(min=0).scatter_(1, places[:, None], 0)
            yield rows, distance.index_select(1, self.index)


def _rerank(
    rows: Rows, queries: int, k1: int = 50, k2: int = 15, lambda_value: float = 0.3
) -> torch.Tensor:
    """Re-ranked distances (Q, G) of the first samples, the queries, to the others."""
    nearest, farthest = _neighbours(rows, max(k1 + 1, k2))
    wide, narrow = (_reciprocal(nearest[:, : k + 1]) for k in (k1, round(k1 / 2)))
    # a member's set counts as well where more than 2/3 of it is in the sample's
    joined = (wide @ narrow.T).multiply(wide).tocsr()
    joined.data *= 3 * joined.data > 2 * narrow.getnnz(axis=1)[joined.indices]
    joined.eliminate_zeros()
    weights = _weights(rows, farthest, (wide + joined @ narrow).tocsr())
    if k2 > 1:
        members = nearest[:, :k2]
        weights = _matrix(members, 1 / members.shape[1]) @ weights
    overlap = torch.from_numpy(_overlap(weights[:queries], weights[queries:])).to(farthest.device)
    for some, distance in rows.blocks(queries, "distances"):
        # Each row of weights sums to 1, so the maxima sum to 2 minus the minima.
        jaccard = (1 - overlap[some] / (2 - overlap[some])).clamp_(min=0)
        relative = distance[:, queries:] / farthest[some]
        overlap[some] = (1 - lambda_value) * jaccard + lambda_value * relative
    return overlap


def _neighbours(rows: Rows, count: int) -> tuple[np.ndarray, torch.Tensor]:
    """Indices of the `count` nearest of every sample (N, count), itself first, and its largest distance (N, 1)."""
    indices = torch.arange(len(rows), device=rows.index.device)
    nearest, farthest = [], []
    for some, distance in rows.blocks(len(rows), "neighbours"):
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


def _reciprocal(nearest: np.ndarray) -> csr_matrix:
    """k-reciprocal sets as ones in the rows (N, N): the neighbours (N, k) of each sample that have it among theirs."""
    adjacency = _matrix(nearest)
    return adjacency.multiply(adjacency.T).tocsr()


def _weights(rows: Rows, farthest: torch.Tensor, sets: csr_matrix) -> csr_matrix:
    """V: exp(-distance over its row's maximum) at the members of each row's set (N, N), normalised to sum 1."""
    values, row = [], np.arange(len(rows)).repeat(np.diff(sets.indptr))
    for some, distance in rows.blocks(len(rows), "neighbourhoods"):
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
    """Sums over the columns of the minimum of a query's (Q, N) and a gallery sample's (G, N) weight: (Q, G) float32. Only
    columns where both weights are non-zero ("meetings") contribute."""
    columns = gallery.T.tocsr()
    total = np.empty((query.shape[0], gallery.shape[0]), np.float32)
    meetings = np.append(0, np.diff(columns.indptr)[query.indices].cumsum())[query.indptr]
    starts = np.unique(meetings[:-1] // MEETINGS, return_index=True)[1]
    for start, stop in zip(starts, [*starts[1:], len(total)], strict=True):
        some = query[start:stop]
        met = columns[some.indices]
        smaller = np.minimum(some.data.repeat(np.diff(met.indptr)), met.data)
        # the entries of a query's columns follow each other: toarray adds up those of a sample
        sums = csr_matrix(
            (smaller, met.indices, met.indptr[some.indptr]), (stop - start, len(total[0]))
        )
        sums.toarray(out=total[start:stop])
    return total
