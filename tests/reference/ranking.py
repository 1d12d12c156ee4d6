"""mAP, CMC, mINP and ROC (docs/method.md, Evaluation), one query and one gallery sample at a time."""

from bisect import bisect_right

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
    """Features are lists of lists of numbers, identities and places (cameras or scenes) lists: → (cmc, mAP, mINP, rates).

    None each where no query has a match.
    """
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
        return None, None, None, None
    firsts = [first_match(ranking) for ranking in scored]
    cmc = [mean([float(first <= rank) for first in firsts]) for rank in range(1, max_rank + 1)]
    average = mean([average_precision(ranking) for ranking in scored])
    return cmc, average, mean([inverse_penalty(ranking) for ranking in scored]), rates(scored)


def inverse_penalty(entries):
    """Number of matches / rank of the last."""
    ranks = [rank for rank, (_, is_match, _) in enumerate(entries, start=1) if is_match]
    return len(ranks) / ranks[-1]


def rates(scored):
    """Share of all matches that no more than one of so many others of all queries are as near as or nearer than."""
    pairs = [(distance, is_match) for entries in scored for distance, is_match, _ in entries]
    others = sorted(distance for distance, is_match in pairs if not is_match)
    counts = [bisect_right(others, distance) for distance, is_match in pairs if is_match]
    return {
        name: mean([float(count * of <= len(others)) for count in counts])
        for name, of in (("1e-3", 1000), ("1e-2", 100))
    }
