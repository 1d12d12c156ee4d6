"""The field's protocol: mAP and CMC of a ranking (spec 9)."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from config import UserError

CHUNK_ELEMENTS = 1 << 23
"""Distances that are ranked at a time; each takes about 40 bytes on the way."""


@dataclass(frozen=True)
class Ranking:
    """`cmc` (max_rank,): share of the queries with a hit among the first 1, 2, … ranks; `mAP`: mean average precision."""

    cmc: torch.Tensor
    mAP: float

    def rank(self, k: int) -> float:
        """Rank-k: share of the queries with a hit among the first k."""
        return float(self.cmc[k - 1])


def squared_distances(query_features: torch.Tensor, gallery_features: torch.Tensor) -> torch.Tensor:
    """Squared Euclidean distances in float32: (Q, D), (G, D) → (Q, G)."""
    query, gallery = query_features.float(), gallery_features.float()
    return query.square().sum(1)[:, None] + gallery.square().sum(1)[None, :] - 2 * query @ gallery.T


def evaluate_ranking(query_features: torch.Tensor, gallery_features: torch.Tensor, query_ids: torch.Tensor,
                     gallery_ids: torch.Tensor, query_cams: torch.Tensor, gallery_cams: torch.Tensor, *,
                     query_scenes: torch.Tensor | None = None, gallery_scenes: torch.Tensor | None = None,
                     max_rank: int = 50) -> Ranking:
    """Rank the gallery (G, D) for every query (Q, D) by squared Euclidean distance, and score the rankings.

    Features are compared as they are: normalise them before. Identities and cameras are integers (Q,) and (G,). A
    query's gallery leaves out samples of its identity and camera (Market protocol), or, where scenes are given, of its
    identity and scene (MSVR310). Queries without a match are left out of the means. A gallery shorter than `max_rank`
    pads the curve with its last value. Memory is bounded whatever the number of queries.

    Raises `ValueError` where only one side has scenes or a length does not fit, `UserError` where no query has a match.
    """
    return _evaluate(lambda part: squared_distances(query_features[part], gallery_features), len(query_features),
                     len(gallery_features), query_features.device, (query_ids, gallery_ids, query_cams, gallery_cams),
                     (query_scenes, gallery_scenes), max_rank)


def evaluate_distances(distance: torch.Tensor, query_ids: torch.Tensor, gallery_ids: torch.Tensor, query_cams: torch.Tensor,
                       gallery_cams: torch.Tensor, *, query_scenes: torch.Tensor | None = None,
                       gallery_scenes: torch.Tensor | None = None, max_rank: int = 50) -> Ranking:
    """`evaluate_ranking` by distances (Q, G) that are there already, such as re-ranked ones: the lower, the more alike.

    Also raises `ValueError` for distances of other than two dimensions.
    """
    if distance.ndim != 2:
        raise ValueError(f"Distances must be (queries, gallery), but they are {tuple(distance.shape)}.")
    return _evaluate(lambda part: distance[part], *distance.shape, distance.device,
                     (query_ids, gallery_ids, query_cams, gallery_cams), (query_scenes, gallery_scenes), max_rank)


def _evaluate(distances: Callable[[slice], torch.Tensor], queries: int, gallery: int, device: torch.device,
              labels: tuple[torch.Tensor, ...], scenes: tuple[torch.Tensor | None, ...], max_rank: int) -> Ranking:
    """`distances` gives the rows (q, G) of some queries; labels: identities of query and gallery, then their cameras."""
    if (scenes[0] is None) != (scenes[1] is None):
        raise ValueError("Give scenes for both query and gallery, or for neither.")
    query_ids, gallery_ids, query_places, gallery_places = (
        torch.as_tensor(found, device=device) for found in labels[:2] + (labels[2:] if scenes[0] is None else scenes))
    for count, ids, places in ((queries, query_ids, query_places), (gallery, gallery_ids, gallery_places)):
        if not count == len(ids) == len(places):
            raise ValueError(f"{count} features have {len(ids)} identities and {len(places)} cameras or scenes.")

    precisions = [torch.zeros(0, dtype=torch.double, device=device)]
    first_ranks = [torch.zeros(0, dtype=torch.long, device=device)]
    for part in _chunks(queries, gallery) if gallery else ():
        same_id = query_ids[part, None] == gallery_ids[None, :]
        kept = ~left_out(query_ids[part], gallery_ids, query_places[part], gallery_places)
        average, first = _score(distances(part), same_id & kept, kept)
        precisions.append(average)
        first_ranks.append(first)
    found = torch.cat(precisions)
    if not len(found):
        raise UserError("No query has a match in the gallery (the same identity from another camera or scene), so there is "
                        "nothing to score; check the identities and cameras of the test split.")
    hits = torch.bincount(torch.cat(first_ranks).clamp(max=max_rank + 1), minlength=max_rank + 2)
    cmc = hits[1:max_rank + 1].cumsum(0).double() / len(found)
    return Ranking(cmc.float().cpu(), float(found.mean()))


def left_out(query_ids: torch.Tensor, gallery_ids: torch.Tensor, query_places: torch.Tensor,
             gallery_places: torch.Tensor) -> torch.Tensor:
    """The gallery samples that a query is not compared with, (Q, G) bool: same identity and same camera or scene."""
    return (query_ids[:, None] == gallery_ids) & (query_places[:, None] == gallery_places)


def _chunks(queries: int, gallery: int) -> Iterator[slice]:
    size = max(1, CHUNK_ELEMENTS // max(1, gallery))
    return (slice(start, start + size) for start in range(0, queries, size))


def _score(distance: torch.Tensor, match: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Average precision and rank of the first hit (from 1) of the queries with a match; all arguments (q, G)."""
    order = distance.argsort(dim=1, stable=True)
    match, kept = match.gather(1, order), kept.gather(1, order)
    rank = kept.cumsum(1)  # place in the ranking without the samples left out
    hits = match.cumsum(1)
    precision = torch.where(match, hits / rank.clamp(min=1), 0.0)
    matches = hits[:, -1]
    scored = matches > 0
    average = precision.double().sum(1)[scored] / matches[scored]
    first = rank.gather(1, match.int().argmax(1, keepdim=True)).squeeze(1)[scored]
    return average, first
