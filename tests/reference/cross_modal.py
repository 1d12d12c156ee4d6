"""Distances between unequal sets of modalities (docs/method.md), one number at a time."""

from tests.reference.reranking import normalise


def distance(query, gallery, sources, query_set, gallery_set, how):
    """Features are lists of parts, lists of numbers, made from the modalities in `sources`, of which the first are of one
    modality each: → a number, or None. Equal sets are compared by all parts."""
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


def squared_distance(one, other):
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
