"""k-reciprocal re-ranking with sparse matrices (docs/method.md).

Zhong, Zheng, Cao, Li: Re-ranking Person Re-identification with k-reciprocal Encoding, CVPR 2017. Shapes: N samples of query
and gallery together, K = k1 + 1, H = round(k1 / 2) + 1.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F

from demo_sdtps.runtime.progress import progress

BLOCK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 25}
"""Approximate elements in a block of rows by device type; on a GPU enough to use it fully. A few such tensors exist at a time,
and never one of N × N."""
KEPT_ELEMENTS = 1 << 24
"""Distances of all to all are kept up to this number, 64 MB; those of larger sets are recomputed by blocks."""
STRIP = 256
"""Columns of the kept distances that are computed at a time; fewer waste less above the diagonal but are slower each."""

Between = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Distances (n, m) of samples (n, D) and (m, D)."""


class SparseRows(NamedTuple):
    """A sparse matrix in CSR format: row r has `column` and `value` from start[r] to start[r + 1]."""

    start: torch.Tensor
    column: torch.Tensor
    value: torch.Tensor


class Distances:
    """Squared Euclidean distances of normalised samples (N, D): `distances[rows]` is (rows, N) float32, ≥ 0, and must not be
    modified.

    They are computed between distinct samples only, as 2 - 2·cosine or by `between`. Copies of an image in query and gallery
    therefore have distance exactly 0 from each other and equal distances to all others, independent of rounding (up to the last
    bit for sets too large to be kept). Features of length 0 count as dissimilar to all others.
    """

    def __init__(self, features: torch.Tensor, between: Between | None = None) -> None:
        self._between = between or squared_by_cosine
        self.distinct, self.index = features.unique(dim=0, return_inverse=True)
        if len(self.distinct) == len(features):
            self.distinct = features
            self.index = torch.arange(len(features), device=features.device)
        self.kept = self._keep_rows() if len(self.distinct) ** 2 <= KEPT_ELEMENTS else None

    def __getitem__(self, rows: slice) -> torch.Tensor:
        are_distinct = len(self.distinct) == len(self.index)
        if self.kept is not None and are_distinct:
            return self.kept[rows]
        places = self.index[rows]
        distance = (
            self._between(self.distinct[places], self.distinct)
            if self.kept is None
            else self.kept[places]
        )
        distance.scatter_(1, places[:, None], 0)
        return distance if are_distinct else distance.index_select(1, self.index)

    def _keep_rows(self) -> torch.Tensor:
        """All distances of distinct samples: computed below the diagonal, by strips of columns, and mirrored."""
        whole = self.distinct.new_empty(len(self.distinct), len(self.distinct))
        for start in range(0, len(whole), STRIP):
            strip = slice(start, start + STRIP)
            whole[start:, strip] = self._between(self.distinct[start:], self.distinct[strip])
            whole[strip, start + STRIP :] = whole[start + STRIP :, strip].T
        return whole.fill_diagonal_(0)


def squared_by_cosine(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Squared Euclidean distances (n, m) of normalised samples (n, D) and (m, D)."""
    return (some @ others.T).mul_(-2).add_(2).clamp_(min=0)


@torch.no_grad()
def k_reciprocal(
    query_features: torch.Tensor,
    gallery_features: torch.Tensor,
    k1: int = 50,
    k2: int = 15,
    lambda_value: float = 0.3,
    between: Between | None = None,
) -> torch.Tensor:
    """Re-ranked distances of queries (Q, D) to the gallery (G, D): (Q, G) float32, on the features' device.

    (1 - lambda_value) · Jaccard distance of the neighbourhoods + lambda_value · squared Euclidean distance over its row's
    maximum (docs/method.md). Features are L2-normalised here, as the definition requires; or, with `between`, they are as they
    are, and it gives their distances, finite float32 from 0 on. The neighbours of a sample are
    itself, then the others by distance, ties by index in query and gallery. k1 + 1 and k2 are limited to N. Beside the result,
    memory grows with N · k1 and the size of the neighbourhoods.
    """
    sides = [query_features, gallery_features]
    if between is None:
        sides = [F.normalize(side.float(), dim=1) for side in sides]
    distances = Distances(torch.cat(sides), between)
    nearest, farthest = _neighbours(distances, max(k1 + 1, k2))
    wide, narrow = (_reciprocal(nearest[:, : count + 1]) for count in (k1, round(k1 / 2)))
    weights = _compress(_weights(distances, farthest, wide, narrow))
    if k2 > 1:
        weights = _compress(_means(weights, nearest[:, :k2]))
    queries = len(query_features)
    result = _overlaps(weights, queries)
    for rows in _row_blocks(torch.full((queries,), len(nearest), device=result.device)):
        distance = distances[rows][:, queries:] / farthest[rows]
        # Each row sums to 1, so the maxima sum to 2 minus the minima.
        jaccard = 1 - result[rows] / (2 - result[rows])
        result[rows] = (1 - lambda_value) * jaccard + lambda_value * distance
    return result


def _neighbours(distances: Distances, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of the `count` nearest of every sample (N, count), itself first, and its largest distance (N, 1)."""
    indices = torch.arange(len(distances.index), device=distances.index.device)
    blocks = _row_blocks(torch.full_like(indices, len(indices)))
    nearest, farthest = [], []
    for rows in progress(blocks, "re-ranking: neighbours", unit="block"):
        distance = distances[rows]
        farthest.append(distance.amax(1, keepdim=True))
        distance = distance.scatter(1, indices[rows, None], -1)
        # topk breaks ties arbitrarily. The bits of floats ≥ 0, read as integers, are ordered as the floats are (those of -1
        # are negative); with the index in the lower bits the order of the keys is that of (distance, index).
        keys = distance.view(torch.int32).long().bitwise_left_shift_(32).bitwise_or_(indices)
        smallest = keys.topk(min(count, len(indices)), largest=False).values
        nearest.append(smallest.bitwise_and_(0xFFFFFFFF))
    # Equal features have distance 0, by which nothing can be divided.
    return torch.cat(nearest), torch.cat(farthest).clamp(min=torch.finfo(torch.float32).tiny)


def _reciprocal(nearest: torch.Tensor) -> torch.Tensor:
    """k-reciprocal sets: the neighbours (N, k) of each sample that have it among theirs; N reindices the others."""
    indices = torch.arange(len(nearest), dtype=torch.int32, device=nearest.device)
    short = nearest.int()  # read k times
    sizes = torch.full_like(indices, nearest.shape[1] ** 2, dtype=torch.long)
    sets = []
    for rows in _row_blocks(sizes):
        is_absent = (short[nearest[rows]] != indices[rows, None, None]).all(2)
        sets.append(nearest[rows].masked_fill(is_absent, len(indices)))
    return torch.cat(sets)


def _weights(
    distances: Distances, farthest: torch.Tensor, wide: torch.Tensor, narrow: torch.Tensor
) -> Iterator[torch.Tensor]:
    """V in blocks (rows, N): exp(-distance) over the expanded set of every sample, normalised to sum 1.

    A sample's set in `wide` (N, K) is expanded by its members' sets in `narrow` (N, H) that overlap it by more than 2/3.
    """
    samples = len(wide)
    # index N, the placeholder, has an empty set
    narrow = F.pad(narrow, (0, 0, 0, 1), value=samples)
    sizes = (narrow < samples).sum(1, dtype=torch.int32)
    elements = max(samples, wide.shape[1] * narrow.shape[1])
    blocks = _row_blocks(torch.full_like(wide[:, 0], elements))
    for rows in progress(blocks, "re-ranking: neighbourhoods", unit="block"):
        members = wide[rows]
        inside = torch.zeros(len(members), samples + 1, dtype=torch.bool, device=wide.device)
        inside.scatter_(1, members, True)[:, samples] = False
        theirs = narrow[members]  # (rows, K, H)
        shared = inside.gather(1, theirs.flatten(1)).view_as(theirs).sum(2, dtype=torch.int32)
        taken = 3 * shared > 2 * sizes[members]
        inside.scatter_(1, theirs.masked_fill(~taken[:, :, None], samples).flatten(1), True)
        weights = (distances[rows] / -farthest[rows]).exp_().mul_(inside[:, :samples])
        yield weights.div_(weights.sum(1, keepdim=True))


def _means(matrix: SparseRows, chosen: torch.Tensor) -> Iterator[torch.Tensor]:
    """For each sample the mean of the rows `chosen` (N, k) of a matrix (N, N), in blocks (rows, N)."""
    samples, k = chosen.shape
    sizes = samples + matrix.start.diff()[chosen].sum(1)
    for rows in progress(_row_blocks(sizes), "re-ranking: means", unit="block"):
        counts, column, value = _rows_of(matrix, chosen[rows].flatten())
        total = value.new_zeros(len(counts) // k, samples)
        row = torch.arange(len(counts), device=counts.device) // k
        total.view(-1).scatter_add_(0, (row * samples).repeat_interleave(counts) + column, value)
        yield total.div_(k)


def _overlaps(weights: SparseRows, queries: int) -> torch.Tensor:
    """Sums over the columns of V of the minimum of a query's and a gallery sample's weight: (Q, G).

    Only columns where both weights are non-zero ("meetings") contribute.
    """
    indices = torch.arange(len(weights.start) - 1, device=weights.start.device)
    gallery = _columns(weights, indices[queries:])
    total = weights.value.new_zeros(queries, len(indices) - queries)
    starts = _group_starts(gallery.start.diff()[weights.column])
    meetings = starts[weights.start[: queries + 1]].diff()
    # Memory-bound passes over the meetings: small blocks stay in the processor's cache.
    for rows in progress(_row_blocks(meetings, share=8), "re-ranking: Jaccard", unit="block"):
        counts, column, weight = _rows_of(weights, indices[:queries][rows])
        met, other, other_weight = _rows_of(gallery, column)
        row = (indices[: len(counts)] * total.shape[1]).repeat_interleave(counts)
        smaller = torch.minimum(weight.repeat_interleave(met), other_weight)
        total[rows].view(-1).scatter_add_(0, row.repeat_interleave(met) + other, smaller)
    return total


def _row_blocks(sizes: torch.Tensor, share: int = 1) -> list[slice]:
    """Consecutive rows of the given sizes, as blocks of about BLOCK_ELEMENTS / `share` elements and one row or more."""
    limit = BLOCK_ELEMENTS.get(sizes.device.type, BLOCK_ELEMENTS["cuda"])
    block = (sizes.cumsum(0) - sizes) // max(1, limit // share)
    lengths = block.unique_consecutive(return_counts=True)[1]
    return [slice(*ends) for ends in pairwise([0, *lengths.cumsum(0).tolist()])]


def _compress(blocks: Iterable[torch.Tensor]) -> SparseRows:
    """The sparse matrix of dense blocks of rows."""
    counts, columns, values = [], [], []
    for block in blocks:
        entries = block.nonzero(as_tuple=True)
        counts.append(entries[0].bincount(minlength=len(block)))
        columns.append(entries[1])
        values.append(block[entries])
    return SparseRows(_group_starts(torch.cat(counts)), torch.cat(columns), torch.cat(values))


def _columns(matrix: SparseRows, rows: torch.Tensor) -> SparseRows:
    """The transpose of the rows (n,) of a matrix (N, N): its row c has the entries of their column c."""
    counts, column, value = _rows_of(matrix, rows)
    row = torch.arange(len(rows), device=rows.device).repeat_interleave(counts)
    order = column.argsort(stable=True)
    sizes = column.bincount(minlength=len(matrix.start) - 1)
    return SparseRows(_group_starts(sizes), row[order], value[order])


def _rows_of(
    matrix: SparseRows, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The entries of the rows (n,), concatenated: their number per row (n,), columns and values."""
    counts = matrix.start.diff()[rows]
    entry = (matrix.start[rows] - _group_starts(counts)[:-1]).repeat_interleave(counts)
    entry += torch.arange(len(entry), device=entry.device)
    return counts, matrix.column.index_select(0, entry), matrix.value.index_select(0, entry)


def _group_starts(counts: torch.Tensor) -> torch.Tensor:
    """Row starts of a sparse matrix, given the entries per row: (n,) → (n + 1,)."""
    return F.pad(counts.cumsum(0), (1, 0))
