"""mAP, CMC, mINP and ROC by the field's protocol, without sorting the gallery (docs/method.md).

The rank of a match is the number of gallery samples that are as near or nearer, which counting gives without their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.distances import Comparison, Distances, measure_in_memory

BLOCK_ELEMENTS = 1 << 19  # distances that are counted at a time: they stay in the processor's cache
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

    Raises `ValueError` where only one side has scenes, a length does not fit or features are not finite (`NotFiniteError`),
    `UserError` where no query has a match.
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
    """The scores by distances; arguments are those of `match_ranks`. Raises `UserError` where no query has a match."""
    rank, matches, tpr = match_ranks(distances, ids, keys)
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
        tpr=tpr,
    )


class ROC:
    """The nearest of the `pairs` of different identities, of queries with a match: as many as the
    largest of FALSE_POSITIVE_RATES accepts, and one more."""

    def __init__(self, pairs: int):
        self.pairs, self.most = pairs, pairs // min(FALSE_POSITIVE_RATES.values()) + 1
        self.nearest, self.limit = [np.zeros(0, np.float32)], np.inf

    def add(self, distances: torch.Tensor) -> None:
        """Distances of any shape, NaN for other pairs."""
        array = distances.numpy()
        self.nearest.append(array[array <= self.limit])
        if sum(map(len, self.nearest)) > 2 * self.most:
            nearest = np.partition(np.concatenate(self.nearest), self.most)[: self.most]
            self.nearest, self.limit = [nearest], float(nearest.max())

    def rates(self, matches: np.ndarray) -> dict[str, float]:
        """`Ranking.tpr`: the share of the matches, of these distances (m,), that are nearer than
        all other pairs but those which the rate accepts."""
        others = np.append(np.sort(np.concatenate(self.nearest)), np.inf)
        return {
            name: float((matches < others[self.pairs // count]).mean())
            for name, count in FALSE_POSITIVE_RATES.items()
        }


class MatchRanks(NamedTuple):
    """`rank` (m,) int64 of the matches, from 1, query by query and ascending within each; `matches`
    (Q,) int64: each query's number of matches; `tpr` as in `Ranking`."""

    rank: np.ndarray
    matches: np.ndarray
    tpr: Mapping[str, float]


@torch.no_grad()
def match_ranks(distances: Distances, ids: Sequence[Any], keys: Sequence[Any]) -> MatchRanks:
    """The ranks of all matches. `ids` and `keys` are integers of the queries (Q,) and of the gallery (G,): the gallery samples
    of a query's identity and key (camera or scene) are excluded. Raises `ValueError` as `evaluate_ranking`."""
    queries, gallery = distances.shape
    row, sample, is_match = same_identity(distances.shape, ids, keys)
    value = distances.pairs(row, sample)
    order = np.lexsort((value, row))
    limits = value[order][is_match[order]]
    matches = np.bincount(row[is_match], minlength=queries)
    bounds = np.append(0, matches.cumsum())
    is_scored = matches > 0
    roc = ROC(int(is_scored.sum()) * gallery - int(is_scored[row].sum()))
    # How many samples of other identities are as near as each match or nearer.
    ahead = np.zeros(len(limits), np.int64)
    for start, block in distances.tiles():
        block = block.cpu()
        if block.sum().isnan():
            raise ValueError(
                "Some distances are not numbers, so nothing can be ranked by them; check that features are finite."
            )
        inside = (sample >= start) & (sample < start + block.shape[1])
        same = row[inside], sample[inside] - start
        size = max(1, BLOCK_ELEMENTS // max(1, block.shape[1]))
        for first in range(0, queries, size):
            rows = slice(first, min(first + size, queries))
            # a copy, in which the other pairs are NaN
            others = block[rows].clone()
            pairs = slice(*np.searchsorted(same[0], [rows.start, rows.stop]))
            others[same[0][pairs] - first, same[1][pairs]] = torch.nan
            others[~is_scored[rows]] = torch.nan
            roc.add(others)
            of_rows = slice(bounds[rows.start], bounds[rows.stop])
            ahead[of_rows] += count_within(others, limits[of_rows], matches[rows])
    tpr = roc.rates(limits) if len(limits) else {}
    return MatchRanks(ahead + rank_in_group(matches), matches, tpr)


def same_identity(
    shape: tuple[int, int], ids: Sequence[Any], keys: Sequence[Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of a query and a gallery sample of its identity: queries (n,), ascending, samples (n,), and whether the sample
    is a match (n,) or excluded. `shape` is (Q, G); other arguments are those of `match_ranks`. Raises `ValueError` where a
    length does not fit."""
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


def count_within(distances: torch.Tensor, limits: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Number (m,) of the distances (Q, g) of each match's query that are not above its limit (m,),
    given the number of matches of each query (Q,); limits query by query, ascending within each."""
    counts = [np.zeros(0, np.int64)]
    ends = matches.cumsum()
    for row, start, end in zip(distances.numpy(), ends - matches, ends, strict=True):
        if start < end:
            # few where features are good, so that sorting is cheap
            near = np.sort(row[row <= limits[end - 1]])
            counts.append(near.searchsorted(limits[start:end], "right"))
    return np.concatenate(counts)
