"""k-reciprocal re-ranking with sparse matrices (docs/method.md).

Zhong, Zheng, Cao, Li: Re-ranking Person Re-identification with k-reciprocal Encoding, CVPR 2017. N samples: the queries, then
the gallery. Distances are computed on the features' device, sparse matrices on the CPU by SciPy.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix

from demo_sdtps.evaluation.distances import (
    Comparison,
    Distances,
    Rows,
    Side,
    check_finite,
    complete_side,
    compute_distances,
    set_distances,
)

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
    """`k_reciprocal` by the distances of a comparison, also of triplets that lack modalities: (Q, G) float32. Triplets without
    a modality in common are as far as can be."""
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
    """Sums over the columns of the minimum of a query's (Q, N) and a gallery sample's (G, N) weight: (Q, G) float32. Only
    columns where both weights are non-zero contribute."""
    columns = gallery.T.tocsr()
    total = np.zeros((query.shape[0], gallery.shape[0]), np.float32)
    for row, (start, stop) in zip(total, pairwise(query.indptr), strict=True):
        met = columns[query.indices[start:stop]]
        weights = query.data[start:stop].repeat(np.diff(met.indptr))
        np.add.at(row, met.indices, np.minimum(weights, met.data))
    return total
