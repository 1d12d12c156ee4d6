"""mAP, CMC, mINP and ROC by the field's protocol (docs/method.md), without sorting the gallery.

The rank of a match is the number of gallery samples that are as near as it or nearer: other identities are counted for each
match, the matches themselves are few and sorted. Q queries, G gallery samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.distances import (
    Comparison,
    Distances,
    complete_side,
    measure_distances,
)

FALSE_POSITIVE_RATES = {"1e-3": 1000, "1e-2": 100}
"""Of `Ranking.tpr`: one of so many pairs of different identities."""


class Labels(NamedTuple):
    """Labels of the queries or of the gallery, (n,) int64 each. Gallery samples of a query's identity and `key` are left out of
    its ranking: its camera, or its scene for MSVR310."""

    identity: np.ndarray
    camera: np.ndarray
    key: np.ndarray

    def select(self, samples: slice | np.ndarray) -> "Labels":
        """Those of some samples."""
        return Labels(*(values[samples] for values in self))


@dataclass(frozen=True)
class Ranking:
    """Scores of a ranking, each in [0, 1], as means over the queries with a match.

    `cmc` (max_rank,) float32: share of these queries with a match among the first 1, 2, … ranks; `mAP`: mean average precision;
    `mINP`: mean of the number of matches / rank of the last; `tpr`: true positive rate of all pairs by one threshold of the
    distance, at each of FALSE_POSITIVE_RATES.
    """

    cmc: torch.Tensor
    mAP: float
    mINP: float
    tpr: Mapping[str, float]

    def rank(self, k: int) -> float:
        """Rank-k: share of the queries with a match among the first k."""
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

    Features are compared as they are: normalise them before. Identities and cameras are integers (Q,) and (G,). A query's
    gallery excludes samples of its identity and camera (Market protocol), or, where scenes are given, of its identity and scene
    (MSVR310). A match ranks after other identities at exactly its distance, whatever the gallery's order; equal features may
    differ in the last bit of their distances. Queries without a match are excluded from the means. With a gallery shorter than
    `max_rank` the curve is padded with its last value. Distances are computed on the features' device, at most 2^26 at once.

    Raises `ValueError` where only one side has scenes, a length does not fit or features are not finite (`NotFiniteError`),
    `UserError` where no query has a match.
    """
    if (query_scenes is None) != (gallery_scenes is None):
        raise ValueError("Give scenes for both query and gallery, or for neither.")
    sides, labels = [], []
    for features, ids, cams, scenes in (
        (query_features, query_ids, query_cams, query_scenes),
        (gallery_features, gallery_ids, gallery_cams, gallery_scenes),
    ):
        keys = cams if scenes is None else scenes
        labels.append(Labels(*(torch.as_tensor(each).cpu().numpy() for each in (ids, cams, keys))))
        if any(len(each) != len(features) for each in labels[-1]):
            counts = " and ".join(str(len(each)) for each in labels[-1][::2])
            raise ValueError(f"{len(features)} features have {counts} identities and cameras.")
        sides.append(complete_side(features))
    (query, gallery), (query_side, gallery_side) = labels, sides
    distances = measure_distances(Comparison(), query_side, gallery_side)
    return score_distances(distances, query, gallery, max_rank)


def score_distances(
    distances: Distances, query: Labels, gallery: Labels, max_rank: int = 50
) -> Ranking:
    """Scores of the gallery's ranking by distances. Raises `UserError` where no query has a match."""
    rank, matches, tpr = match_ranks(distances, query, gallery)
    if not len(rank):
        raise UserError(
            "No query has a match in the gallery (the same identity from another camera or scene), so there is "
            "nothing to score; check the identities and cameras of the test split."
        )
    average, ends = average_precisions(rank, matches), matches[matches > 0].cumsum()
    first, last = rank[np.append(0, ends[:-1])], rank[ends - 1]
    cmc = (first <= np.arange(1, max_rank + 1)[:, None]).mean(axis=1)
    return Ranking(
        torch.from_numpy(cmc).float(),
        mAP=float(average[~np.isnan(average)].mean()),
        mINP=float((matches[matches > 0] / last).mean()),
        tpr=tpr,
    )


class MatchRanks(NamedTuple):
    """`rank` (m,) int64 of all matches, from 1, query by query, ascending within each; `matches` (Q,) int64: the number of each
    query; `tpr` as in `Ranking`."""

    rank: np.ndarray
    matches: np.ndarray
    tpr: Mapping[str, float]


@torch.no_grad()
def match_ranks(distances: Distances, query: Labels, gallery: Labels) -> MatchRanks:
    """Rank of every match in the gallery's ranking for its query."""
    order = np.argsort(gallery.identity, kind="stable")
    starts, stops = (
        np.searchsorted(gallery.identity, query.identity, side, sorter=order)
        for side in ("left", "right")
    )
    # of each query the distances of its matches, ascending, and how many others are as near or nearer
    limits, ahead = [], []
    # the nearest pairs of different identities: as many as the largest rate accepts of all pairs, and one more
    nearest, largest, pairs = [np.zeros(0, np.float32)], np.inf, 0
    most = len(starts) * len(order) // min(FALSE_POSITIVE_RATES.values()) + 1
    for rows, block in distances.blocks():
        for number, distance in enumerate(block.cpu().numpy(), start=rows.start):
            same = order[starts[number] : stops[number]]
            is_match = gallery.key[same] != query.key[number]
            limits.append(np.sort(distance[same[is_match]]))
            if is_match.any():
                others = np.delete(distance, same)
                # few where features are good, so that sorting is cheap
                near = np.sort(others[others <= limits[-1][-1]])
                ahead.append(near.searchsorted(limits[-1], "right"))
                nearest.append(others[others <= largest])
                pairs += len(others)
        near = np.concatenate(nearest)
        if len(near) > most:
            near = np.partition(near, most - 1)[:most]
            largest = near[-1]
        nearest = [near]
    matches = np.array(list(map(len, limits)), int)
    if not ahead:
        return MatchRanks(np.zeros(0, int), matches, {})
    thresholds, distance = np.append(np.sort(nearest[0]), np.inf), np.concatenate(limits)
    return MatchRanks(
        np.concatenate(ahead) + count_within(matches),
        matches,
        {
            name: float((distance < thresholds[pairs // of]).mean())
            for name, of in FALSE_POSITIVE_RATES.items()
        },
    )


def average_precisions(rank: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Average precision of each query (Q,) float64, NaN without a match, by the result of `match_ranks`."""
    average, is_scored = np.full(len(matches), np.nan), matches > 0
    if len(rank):
        starts = (matches.cumsum() - matches)[is_scored]
        average[is_scored] = np.add.reduceat(count_within(matches) / rank, starts)
    return average / matches


def count_within(matches: np.ndarray) -> np.ndarray:
    """1, 2, … within each query's matches, by their numbers (Q,): (m,) int64."""
    return np.arange(1, matches.sum() + 1) - (matches.cumsum() - matches).repeat(matches)
