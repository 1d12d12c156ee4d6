"""mAP, CMC and mINP (docs/method.md, Evaluation), one query and one gallery sample at a time."""

from tests.reference.analysis import average_precision, first_match, mean, rankings
from tests.reference.cross_modal import squared_distance


def evaluate(
    query_features,
    gallery_features,
    query_ids,
    gallery_ids,
    query_places,
    gallery_places,
    max_rank=50,
):
    """Lists of features, identities and places (cameras or scenes) → (cmc, mAP, mINP), None each without any match."""
    distances = [
        [squared_distance(one, other) for other in gallery_features] for one in query_features
    ]
    return evaluate_distances(
        distances, query_ids, gallery_ids, query_places, gallery_places, max_rank
    )


def evaluate_distances(
    distances, query_ids, gallery_ids, query_places, gallery_places, max_rank=50
):
    """`evaluate` by distances that are there already: a list per query of those to the gallery."""
    every = rankings(distances, (query_ids, gallery_ids), (query_places, gallery_places))
    scored = [ranking for ranking in every if any(is_match for _, is_match, _ in ranking)]
    if not scored:
        return None, None, None
    firsts = [first_match(ranking) for ranking in scored]
    cmc = [mean([float(first <= rank) for first in firsts]) for rank in range(1, max_rank + 1)]
    average = mean([average_precision(ranking) for ranking in scored])
    return cmc, average, mean([inverse_penalty(ranking) for ranking in scored])


def inverse_penalty(entries):
    """Number of matches / rank of the last."""
    ranks = [rank for rank, (_, is_match, _) in enumerate(entries, start=1) if is_match]
    return len(ranks) / ranks[-1]
