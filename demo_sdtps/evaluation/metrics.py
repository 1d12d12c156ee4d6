"""mAP, CMC, mINP and ROC by the field's protocol, without sorting the gallery (docs/method.md).

The rank of a match is the number of gallery samples that are as near or nearer, which counting gives without their order.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.distances import Comparison, Distances, measure_in_memory

FALSE_POSITIVE_RATES = {"1e-3": 1000, "1e-2": 100}
"""Of `Ranking.tpr`: one of so many pairs of different identities."""


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
    the gallery; memory beside the features is bounded but for some 60 bytes for each pair of one identity and 12 for each
    hundredth of all pairs.

    Raises `ValueError` where only one side has scenes, a length does not fit or a distance to a sample of the query's identity
    is not a number, `UserError` where no query has a match.
    """
    if (query_scenes is None) != (gallery_scenes is None):
        raise ValueError("Give scenes for both query and gallery, or for neither.")
    keys = (query_cams, gallery_cams) if query_scenes is None else (query_scenes, gallery_scenes)
    query, gallery = (
        (features.detach(), np.ones((len(features), len(MODALITIES)), bool))
        for features in (query_features, gallery_features)
    )
    distances = measure_in_memory(Comparison(), query, gallery)
    return score_distances(distances, (query_ids, gallery_ids), keys, max_rank)


def score_distances(
    distances: Distances, ids: Sequence[Any], keys: Sequence[Any], max_rank: int = 50
) -> Ranking:
    """The scores by distances; arguments are those of `match_ranks`."""
    roc = ROC(distances.shape)
    return score_ranks(*match_ranks(distances, ids, keys, roc), max_rank, roc)


def score_ranks(
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
    """The distances of all matches, and the smallest of pairs of different identities, as many of at most Q · G as the
    largest of FALSE_POSITIVE_RATES accepts, and one more; of queries with a match."""

    def __init__(self, shape: tuple[int, int]):
        self.most = shape[0] * shape[1] // min(FALSE_POSITIVE_RATES.values()) + 1
        self.matches, self.others = np.zeros(0, np.float32), [np.zeros(0, np.float32)]
        self.limit, self.count = np.inf, 0

    def add(
        self, distance: torch.Tensor, row: np.ndarray, sample: np.ndarray, has_match: np.ndarray
    ) -> None:
        """Add distances (Q, g) but those of queries (n,) to samples (n,), which are of one identity, and those of queries
        without a match: `has_match` (Q,)."""
        self.count += int(has_match.sum()) * distance.shape[1] - int(has_match[row].sum())
        # a few queries at a time: the more are there, the fewer of the next are near
        size = max(1, self.most // max(1, distance.shape[1]))
        for start in range(0, len(distance), size):
            rows = distance[start : start + size]
            inside = (row >= start) & (row < start + size)
            is_near = rows <= self.limit
            is_near[torch.from_numpy(~has_match[start : start + size])] = False
            is_near[torch.from_numpy(row[inside] - start), torch.from_numpy(sample[inside])] = False
            self.others.append(_on_cpu(rows[is_near]))
            if sum(map(len, self.others)) > 2 * self.most:
                nearest = np.partition(np.concatenate(self.others), self.most)[: self.most]
                self.others, self.limit = [nearest], float(nearest.max())

    def rates(self) -> dict[str, float]:
        """`Ranking.tpr`: the share of the matches that are nearer than all others but those which the rate accepts."""
        others = np.append(np.sort(np.concatenate(self.others)), np.inf)
        return {
            name: float((self.matches < others[self.count // of]).mean())
            for name, of in FALSE_POSITIVE_RATES.items()
        }


@torch.no_grad()
def match_ranks(
    distances: Distances, ids: Sequence[Any], keys: Sequence[Any], roc: ROC | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks (m,) int64 of the matches, from 1, query by query and ascending within each, and each query's number of matches
    (Q,) int64.

    `ids` and `keys` are integers of the queries (Q,) and of the gallery (G,): the gallery samples of a query's identity and key
    (camera or scene) are excluded. The distances are added to `roc`. Raises `ValueError` as `evaluate_ranking`.
    """
    queries = distances.shape[0]
    row, sample, is_match = same_identity(distances.shape, ids, keys)
    value = _on_cpu(distances.pairs(row, sample))
    if np.isnan(value).any():
        raise ValueError(
            "Some distances are not numbers, so nothing can be ranked by them; check that features are finite."
        )
    order = np.lexsort((value, row))
    row, sample, limits = row[order], sample[order], value[order][is_match[order]]
    matches = np.bincount(row[is_match[order]], minlength=queries)
    # How many of other identities are as near as each match or nearer.
    ahead = np.zeros(len(limits), np.int64)
    for start, block in distances.tiles():
        inside = np.flatnonzero((sample >= start) & (sample < start + block.shape[1]))
        pairs = row[inside], sample[inside] - start
        if roc:
            roc.add(block, *pairs, matches > 0)
        ahead += count_within(block, limits, matches)
        ahead -= _count_pairs_within(block, *pairs, limits, matches)
    if roc:
        roc.matches = limits
    return ahead + rank_in_group(matches), matches


def same_identity(
    shape: tuple[int, int], ids: Sequence[Any], keys: Sequence[Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of a query and a gallery sample of its identity: queries (n,), ascending, samples (n,), and whether the sample
    is a match (n,) or excluded.

    `shape` is (Q, G); other arguments are those of `match_ranks`. Raises `ValueError` where a length does not fit.
    """
    query_ids, gallery_ids, query_keys, gallery_keys = (
        torch.as_tensor(labels).cpu().numpy() for labels in (*ids, *keys)
    )
    for count, each, key in zip(
        shape, (query_ids, gallery_ids), (query_keys, gallery_keys), strict=True
    ):
        if not count == len(each) == len(key):
            raise ValueError(
                f"{count} features have {len(each)} identities and {len(key)} cameras or scenes."
            )
    order = np.argsort(gallery_ids, kind="stable")
    starts, ends = (
        np.searchsorted(gallery_ids, query_ids, side, sorter=order) for side in ("left", "right")
    )
    counts = ends - starts
    row = np.arange(len(counts)).repeat(counts)
    sample = order[starts.repeat(counts) + rank_in_group(counts) - 1]
    return row, sample, gallery_keys[sample] != query_keys[row]


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


def count_within(distance: torch.Tensor, limits: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Number (m,) of the distances (Q, g) of each match's query that are not above its limit (m,), given the number of matches
    of each query (Q,); limits query by query, ascending within each."""
    if distance.is_cuda:
        return _count_on_gpu(distance, limits, matches)
    array = _on_cpu(distance)
    bounds = np.append(0, matches.cumsum())
    within = np.zeros(len(limits), np.int64)

    def count(queries: range) -> None:
        for query in queries:
            of_query = slice(bounds[query], bounds[query + 1])
            if matches[query]:
                # few where features are good, so that sorting is cheap
                near = array[query][array[query] <= limits[of_query][-1]]
                near.sort()
                within[of_query] = near.searchsorted(limits[of_query], "right")

    # One task per thread: starting a task costs as much as a query.
    threads = torch.get_num_threads()
    size = max(1, -(-len(array) // threads))
    starts = range(0, len(array), size)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(count, (range(len(array))[start : start + size] for start in starts)))
    return within


def _count_on_gpu(distance: torch.Tensor, limits: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """`count_within` by torch, on any device: one comparison with all distances for the first match of each query, then one
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


def _count_pairs_within(
    distance: torch.Tensor,
    row: np.ndarray,
    sample: np.ndarray,
    limits: np.ndarray,
    matches: np.ndarray,
) -> np.ndarray:
    """`count_within` of the distances of queries (n,), ascending, to samples (n,) alone."""
    value = _on_cpu(distance[torch.from_numpy(row), torch.from_numpy(sample)])
    value = value[np.lexsort((value, row))]
    bounds = np.append(0, np.bincount(row, minlength=len(matches)).cumsum())
    groups = zip(pairwise(bounds), pairwise(np.append(0, matches.cumsum())), strict=True)
    counts = [
        value[start:stop].searchsorted(limits[first:last], "right")
        for (start, stop), (first, last) in groups
    ]
    return np.concatenate([np.zeros(0, np.int64), *counts])
