"""mAP, CMC, mINP and ROC by the field's protocol, without sorting the gallery (docs/method.md).

The rank of a match is the number of gallery samples that are as near or nearer, which counting gives without their order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from demo_sdtps.config import UserError

# distances in memory at a time, of 4 bytes each: 33 queries to a gallery of a million
CHUNK_ELEMENTS = 1 << 25

FALSE_POSITIVE_RATES = {"1e-3": 1000, "1e-2": 100}
"""Of `Ranking.tpr`: one of so many pairs of different identities."""

DistanceRows = Callable[[slice | torch.Tensor], torch.Tensor]
"""Distances of some queries, by a slice or indices, to the whole gallery: (q, G)."""


@dataclass(frozen=True)
class Ranking:
    """`cmc` (max_rank,): share of the queries with a hit among the first 1, 2, … ranks; `mAP`: mean average precision; `mINP`:
    mean over the queries of their number of matches / rank of the last; `tpr`: true positive rate of all pairs by one limit of
    the distance, at each of FALSE_POSITIVE_RATES."""

    cmc: torch.Tensor
    mAP: float
    mINP: float
    tpr: Mapping[str, float]

    def rank(self, k: int) -> float:
        """Rank-k: share of the queries with a hit among the first k."""
        return float(self.cmc[k - 1])


def squared_distances(query_features: torch.Tensor, gallery_features: torch.Tensor) -> torch.Tensor:
    """Squared Euclidean distances in float32: (Q, D), (G, D) → (Q, G)."""
    query, gallery = query_features.float(), gallery_features.float()
    return distances_of(query, gallery, squared_lengths(gallery))


@torch.no_grad()
def evaluate_ranking(
    query_features: torch.Tensor,
    gallery_features: torch.Tensor,
    query_ids: torch.Tensor,
    gallery_ids: torch.Tensor,
    query_cams: torch.Tensor,
    gallery_cams: torch.Tensor,
    *,
    query_scenes: torch.Tensor | None = None,
    gallery_scenes: torch.Tensor | None = None,
    max_rank: int = 50,
) -> Ranking:
    """Rank the gallery (G, D) for every query (Q, D) by squared Euclidean distance, and score the rankings.

    Features are compared as they are: normalise them before. Identities and cameras are integers (Q,) and (G,). A
    query's gallery excludes samples of its identity and camera (Market protocol), or, where scenes are given, of its identity
    and scene (MSVR310). A match ranks after other identities at exactly its distance, whatever the gallery's order; equal
    features may differ in the last bit of their distances. Queries without a match are excluded from the means. With a gallery
    shorter than `max_rank` the curve is padded with its last value. For a fixed number of matches per query, time is linear in
    the gallery; memory beside float32 features is bounded but for 12 bytes per match and per hundredth pair.

    Raises `ValueError` where only one side has scenes, a length does not fit or a distance to a sample of the query's identity
    is not a number, `UserError` where no query has a match.
    """
    if (query_scenes is None) != (gallery_scenes is None):
        raise ValueError("Give scenes for both query and gallery, or for neither.")
    keys = (query_cams, gallery_cams) if query_scenes is None else (query_scenes, gallery_scenes)
    query, gallery = query_features.float(), gallery_features.float()
    lengths = squared_lengths(gallery)
    return score_distances(
        lambda rows: distances_of(query[rows], gallery, lengths),
        (len(query), len(gallery)),
        (query_ids, gallery_ids),
        keys,
        max_rank,
    )


def score_distances(
    distances: DistanceRows,
    shape: Sequence[int],
    ids: Sequence[Any],
    keys: Sequence[Any],
    max_rank: int = 50,
) -> Ranking:
    """The scores by distances; arguments are those of `match_ranks`."""
    roc = ROC(shape[0] * shape[1])
    return ranking_of(*match_ranks(distances, shape, ids, keys, roc), max_rank, roc)


def ranking_of(
    rank: np.ndarray, matches: np.ndarray, max_rank: int = 50, roc: "ROC | None" = None
) -> Ranking:
    """The scores by the result of `match_ranks`, `tpr` by its `roc`."""
    if not len(rank):
        raise UserError(
            "No query has a match in the gallery (the same identity from another camera or scene), so there is "
            "nothing to score; check the identities and cameras of the test split."
        )
    average, matches = average_precisions(rank, matches), matches[matches > 0]
    hits = np.bincount(rank[_starts(matches)].clip(max=max_rank + 1), minlength=max_rank + 2)
    cmc = hits[1 : max_rank + 1].cumsum() / len(matches)
    return Ranking(
        torch.from_numpy(cmc).float(),
        mAP=float(average[~np.isnan(average)].mean()),
        mINP=float((matches / rank[matches.cumsum() - 1]).mean()),
        tpr=roc.rates() if roc else {},
    )


class ROC:
    """The distances of all matches, and the smallest of pairs of different identities, as many of at most `pairs` as the
    largest of FALSE_POSITIVE_RATES accepts, and one more; of queries with a match."""

    def __init__(self, pairs: int):
        self.most = pairs // min(FALSE_POSITIVE_RATES.values()) + 1
        self.matches, self.others = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
        self.limit, self.count = np.inf, 0

    def add(
        self,
        distance: torch.Tensor,
        row: np.ndarray,
        own_rows: np.ndarray,
        match: np.ndarray,
        has_match: np.ndarray,
    ) -> None:
        """Add distances (q, G), with the samples of the queries' own identities as `_match_ranks` has them, and whether a query
        has a match (q,), perhaps in another part of the gallery."""
        own = torch.from_numpy(row), torch.from_numpy(own_rows)
        self.matches.append(_on_cpu(distance[own])[match])
        self.count += int(has_match.sum()) * distance.shape[1] - int(has_match[row].sum())
        is_other = torch.ones(distance.shape, dtype=torch.bool, device=distance.device)
        is_other[own] = False
        is_other[torch.from_numpy(~has_match)] = False
        # a few queries at a time: the more are there, the fewer of the next are near
        size = max(1, self.most // max(1, distance.shape[1]))
        for rows, mask in zip(distance.split(size), is_other.split(size), strict=True):
            self.others.append(_on_cpu(rows[mask & (rows <= self.limit)]))
            if sum(map(len, self.others)) > 2 * self.most:
                nearest = np.partition(np.concatenate(self.others), self.most)[: self.most]
                self.others, self.limit = [nearest], float(nearest.max())

    def rates(self) -> dict[str, float]:
        """`Ranking.tpr`: the share of the matches that are nearer than all others but those which the rate accepts."""
        others = np.append(np.sort(np.concatenate(self.others)), np.inf)
        matches = np.concatenate(self.matches)
        return {
            name: float((matches < others[self.count // of]).mean())
            for name, of in FALSE_POSITIVE_RATES.items()
        }


@torch.no_grad()
def match_ranks(
    distances: DistanceRows,
    shape: Sequence[int],
    ids: Sequence[Any],
    keys: Sequence[Any],
    roc: ROC | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks (m,) int64 of the matches, from 1, query by query and ascending within each, and each query's number of matches
    (Q,) int64.

    `shape` is (Q, G). `ids` and `keys` are integers of the queries (Q,) and of the gallery (G,): the gallery samples of a
    query's identity and key (camera or scene) are excluded. The distances are added to `roc`. Raises `ValueError` as
    `evaluate_ranking`.
    """
    queries, gallery = shape
    own_samples = own_samples_of(shape, ids, keys)
    rank_parts, match_parts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for rows in chunks(queries, gallery):
            row, own_rows, match = own_samples(rows)
            match_parts.append(np.bincount(row[match], minlength=len(range(queries)[rows])))
            distance = distances(rows)
            rank_parts.append(_match_ranks(distance, row, own_rows, match, pool))
            if roc:
                roc.add(distance, row, own_rows, match, match_parts[-1] > 0)
    return np.concatenate(rank_parts), np.concatenate(match_parts)


def own_samples_of(
    shape: Sequence[int], ids: Sequence[Any], keys: Sequence[Any]
) -> Callable[[slice], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The gallery samples of the queries' identities, by a slice of the queries: the query's row in the slice (n,), ascending,
    the gallery index (n,), and whether the sample is a match (n,) or excluded.

    Arguments are those of `match_ranks`. Raises `ValueError` where a length does not fit.
    """
    query_ids, gallery_ids, query_keys, gallery_keys = (
        torch.as_tensor(labels).cpu().numpy() for labels in (*ids, *keys)
    )
    for count, own_ids, own_keys in zip(
        shape, (query_ids, gallery_ids), (query_keys, gallery_keys), strict=True
    ):
        if not count == len(own_ids) == len(own_keys):
            raise ValueError(
                f"{count} features have {len(own_ids)} identities and {len(own_keys)} cameras or scenes."
            )
    order = np.argsort(gallery_ids, kind="stable")
    starts, ends = (
        np.searchsorted(gallery_ids, query_ids, side, sorter=order) for side in ("left", "right")
    )

    def own_samples(rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        counts = ends[rows] - starts[rows]
        row = np.arange(len(counts)).repeat(counts)
        samples = order[starts[rows].repeat(counts) + rank_in_group(counts) - 1]
        return row, samples, gallery_keys[samples] != query_keys[rows][row]

    return own_samples


def average_precisions(rank: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Average precision of each query (Q,) float64, NaN without a match, by the result of `match_ranks`."""
    precisions = np.full(len(matches), np.nan)
    scored = matches > 0
    counts = matches[scored]
    if len(counts):
        precisions[scored] = np.add.reduceat(rank_in_group(counts) / rank, _starts(counts)) / counts
    return precisions


def _starts(counts: np.ndarray) -> np.ndarray:
    """Start index of each group, given the groups' sizes: (n,) → (n,)."""
    return counts.cumsum() - counts


def rank_in_group(counts: np.ndarray) -> np.ndarray:
    """1, 2, … within each group, given the groups' sizes (n,), concatenated."""
    return np.arange(1, counts.sum() + 1) - _starts(counts).repeat(counts)


def _on_cpu(distance: torch.Tensor) -> np.ndarray:
    """Distances as an array."""
    # NumPy compares these slowly or not at all
    is_half = distance.is_floating_point() and distance.dtype.itemsize < 4
    return distance.detach().to("cpu", torch.float32 if is_half else distance.dtype).numpy()


def squared_lengths(features: torch.Tensor) -> torch.Tensor:
    """(n, D) → (n,), in parts: all squares together would take as much memory as the features."""
    return torch.cat([rows.square().sum(1) for rows in features.split(1 << 14)])


def distances_of(
    query: torch.Tensor, gallery: torch.Tensor, gallery_lengths: torch.Tensor
) -> torch.Tensor:
    """Squared distances (Q, G) of features (Q, D) and (G, D), given the squared lengths (G,), without another (Q, G) tensor."""
    return torch.addmm(gallery_lengths, query, gallery.T, alpha=-2).add_(
        query.square().sum(1, keepdim=True)
    )


def chunks(queries: int, gallery: int) -> Iterator[slice]:
    """Rows of a matrix (queries, gallery) in parts of `CHUNK_ELEMENTS`."""
    size = max(1, CHUNK_ELEMENTS // max(1, gallery))
    return (slice(start, start + size) for start in range(0, queries, size))


def _match_ranks(
    distance: torch.Tensor, row: np.ndarray, own_rows: np.ndarray, match: np.ndarray, pool: Executor
) -> np.ndarray:
    """Ranks (m,) of the matches in distances (q, G), from 1: query by query, ascending within each. The distances are counted
    where they are.

    The samples of the queries' own identities are given query by query too: the query's row (n,), the gallery index `own_rows`
    (n,), and whether the sample is a match or excluded (n,).
    """
    value = _on_cpu(distance[torch.from_numpy(row), torch.from_numpy(own_rows)])
    if np.isnan(value).any():
        raise ValueError(
            "Some distances are not numbers, so nothing can be ranked by them; check that features are finite."
        )
    order = np.lexsort((value, row))
    value, match = value[order], match[order]
    differs = (value[1:] != value[:-1]) | (row[1:] != row[:-1])
    # The number of samples of the query's identity that are as near or nearer, ties included.
    last = np.append(np.flatnonzero(differs) + 1, len(row))[
        np.append(0, differs.cumsum())[: len(row)]
    ]
    not_farther = last - _starts(np.bincount(row, minlength=len(distance)))[row]
    limits, matches = value[match], np.bincount(row[match], minlength=len(distance))
    within = (
        _within_on_gpu(distance, limits, matches)
        if distance.is_cuda
        else counts_within(_on_cpu(distance), limits, matches, pool)
    )
    return within - not_farther[match] + rank_in_group(matches)


def _within_on_gpu(distance: torch.Tensor, limits: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """`counts_within` by torch, on any device: one comparison with all distances for the first match of each query, then one
    for the second of each, …"""
    row, place = np.arange(len(matches)).repeat(matches), rank_in_group(matches) - 1
    # the counts of other places are not read
    padded = np.zeros((matches.max(initial=0), len(matches)), limits.dtype)
    padded[place, row] = limits
    counts = [
        (distance <= limit[:, None]).sum(dim=1)
        for limit in torch.from_numpy(padded).to(distance.device)
    ]
    return torch.stack(counts).cpu().numpy()[place, row] if counts else np.zeros(0, np.int64)


def counts_within(
    distance: np.ndarray, limits: np.ndarray, matches: np.ndarray, pool: Executor
) -> np.ndarray:
    """Number (m,) of each match's distances that are not above its limit (m,), given distances (q, G) and the number of matches
    of each query (q,); limits query by query, ascending within each."""
    bounds = np.append(0, matches.cumsum())
    within = np.zeros(len(limits), np.int64)

    def count(queries: range) -> None:
        for query in queries:
            of_query = slice(bounds[query], bounds[query + 1])
            if matches[query]:
                # few where features are good, so that sorting is cheap
                near = distance[query][distance[query] <= limits[of_query][-1]]
                near.sort()
                within[of_query] = near.searchsorted(limits[of_query], "right")

    # One task per thread: starting a task costs as much as a query.
    size = max(1, -(-len(distance) // torch.get_num_threads()))
    starts = range(0, len(distance), size)
    list(pool.map(count, (range(len(distance))[start : start + size] for start in starts)))
    return within
