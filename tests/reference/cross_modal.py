"""Distances between unequal sets of modalities (docs/method.md), one number at a time."""

import math

from tests.reference.reranking import normalise


def distance(query, gallery, sources, query_set, gallery_set, how):
    """Features are lists of parts, lists of numbers, made from the modalities in `sources`, of which the first are of one
    modality each: → a number, or None. Equal sets are compared by all parts, but of nothing."""
    if how != "all" and not (query_set and gallery_set):
        return None
    if how == "pairs" and query_set != gallery_set:
        count = len({modality for source in sources for modality in source})
        distances = [
            squared_distance(normalise(one), normalise(other))
            for one, source in zip(query[:count], sources[:count], strict=True)
            if all(modality in query_set for modality in source)
            for other, source in zip(gallery[:count], sources[:count], strict=True)
            if all(modality in gallery_set for modality in source)
        ]
        return sum(distances) / len(distances)
    vectors = ([], [])
    for one, other, source in zip(query, gallery, sources, strict=True):
        if (
            how == "all"
            or query_set == gallery_set
            or all(modality in query_set and modality in gallery_set for modality in source)
        ):
            vectors[0].extend(one)
            vectors[1].extend(other)
    return squared_distance(*map(normalise, vectors)) if vectors[0] else None


def distances(queries, gallery, sources, query_sets, gallery_sets, how):
    """`distance` of each query and each gallery sample, which have a set of modalities each: → lists, infinite for None."""
    rows = []
    for query, query_set in zip(queries, query_sets, strict=True):
        row = []
        for other, gallery_set in zip(gallery, gallery_sets, strict=True):
            value = distance(query, other, sources, query_set, gallery_set, how)
            row.append(math.inf if value is None else value)
        rows.append(row)
    return rows


def squared_distance(one, other):
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
