"""mAP, CMC and mINP by the field's protocol (docs/method.md), without sorting the gallery; and what an evaluation says beyond
its means: by query and by pair of cameras (docs/getting_started.md).

The rank of a match is the number of gallery samples that are as near as it or nearer: other identities are counted for each
match, the matches themselves are few and sorted. Q queries, G gallery samples.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.distances import Comparison, Distances, complete_side, measure_distances


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
    `mINP`: mean of the number of matches / rank of the last.
    """

    cmc: torch.Tensor
    mAP: float
    mINP: float

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
    distances = measure_distances(Comparison(), *sides)
    return score_distances(distances, labels[0], labels[1], max_rank)


class QueryScores(NamedTuple):
    """Scores of each query (Q,).

    `average_precision` float64: average precision; `inverse_penalty` float64: number of matches / rank of the last; both are
    NaN for a query without a match. `first_match` int64: rank of the first match, from 1, or 0 without one.
    """

    average_precision: np.ndarray
    first_match: np.ndarray
    inverse_penalty: np.ndarray


@torch.no_grad()
def score_queries(distances: Distances, query: Labels, gallery: Labels) -> QueryScores:
    """Scores of each query by the ranks of all its matches. Distances are there a block of queries at a time."""
    order = np.argsort(gallery.identity, kind="stable")
    starts, stops = (
        np.searchsorted(gallery.identity, query.identity, side, sorter=order)
        for side in ("left", "right")
    )
    average, penalty = np.full((2, len(starts)), np.nan)
    first = np.zeros(len(starts), int)
    for rows, block in distances.blocks():
        for number, distance in enumerate(block.cpu().numpy(), start=rows.start):
            same = order[starts[number] : stops[number]]
            limits = np.sort(distance[same[gallery.key[same] != query.key[number]]])
            if not len(limits):
                continue
            others = np.delete(distance, same)
            # few where features are good, so that sorting is cheap
            near = np.sort(others[others <= limits[-1]])
            place = np.arange(1, len(limits) + 1)
            rank = near.searchsorted(limits, "right") + place
            # `sum` would add in another order, which changes the last bit of published figures
            average[number] = np.add.reduceat(place / rank, [0])[0] / len(limits)
            penalty[number], first[number] = len(limits) / rank[-1], rank[0]
    return QueryScores(average, first, penalty)


def score_distances(
    distances: Distances, query: Labels, gallery: Labels, max_rank: int = 50
) -> Ranking:
    """Scores of the gallery's ranking by distances. Raises `UserError` where no query has a match."""
    scores = score_queries(distances, query, gallery)
    has_match = scores.first_match > 0
    if not has_match.any():
        raise UserError(
            "No query has a match in the gallery (the same identity from another camera or scene), so there is "
            "nothing to score; check the identities and cameras of the test split."
        )
    average, first, penalty = (values[has_match] for values in scores)
    cmc = (first <= np.arange(1, max_rank + 1)[:, None]).mean(axis=1)
    return Ranking(
        torch.from_numpy(cmc).float(), mAP=float(average.mean()), mINP=float(penalty.mean())
    )


class Hit(NamedTuple):
    """A sample of a rank list, by its index in the gallery."""

    sample: int
    distance: float
    is_match: bool


def nearest_samples(
    distances: Distances, query: Labels, gallery: Labels, chosen: np.ndarray, count: int
) -> list[list[Hit]]:
    """The `count` nearest of the queries at indices `chosen` (n,), fewer where the gallery has no more; a match comes after
    other identities at its distance, as average precision counts it."""
    lists = []
    for number, distance in zip(chosen, distances.rows(chosen).cpu().numpy(), strict=True):
        is_same = gallery.identity == query.identity[number]
        is_match = is_same & (gallery.key != query.key[number])
        distance = np.where(is_match | ~is_same, distance, np.inf)
        order = np.lexsort((is_match, distance))[:count]
        hits = zip(order.tolist(), distance[order].tolist(), is_match[order].tolist(), strict=True)
        lists.append([hit for hit in map(Hit._make, hits) if hit.distance < np.inf])
    return lists
