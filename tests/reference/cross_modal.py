"""Distances of triplets that may lack modalities (docs/method.md), one number at a time."""

import math
import statistics

from tests.reference.reranking import normalise


def distance(query, gallery, sources, query_set, gallery_set, how):
    """Features are lists of parts, lists of numbers, made from the modalities in `sources`: → a number, or None."""
    vectors = ([], [])
    for one, other, source in zip(query, gallery, sources, strict=True):
        if how == "all" or all(
            modality in query_set and modality in gallery_set for modality in source
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


def scales(queries, gallery, sources, query_sets, gallery_sets, how, fewest):
    """Mean and deviation of each query's distances to all triplets that could be compared by the parts that it and a gallery
    sample are, with fewer than `fewest` of them those of most; 0 and 1 where the query is compared by the same with all."""
    rows = []
    for query, query_set in zip(queries, query_sets, strict=True):
        parts_of = [frozenset(query_set & each) for each in gallery_sets]
        cohorts = {
            parts: [
                distance(query, other, sources, query_set, parts, how)
                for other, gallery_set in zip(gallery, gallery_sets, strict=True)
                if parts <= gallery_set
            ]
            for parts in set(parts_of) - {frozenset()}
        }
        if how == "all" or len(cohorts) < 2:
            rows.append(len(gallery) * [(0.0, 1.0)])
            continue
        most = max(cohorts.values(), key=len)
        of_parts = {
            parts: cohort if len(cohort) >= fewest else most for parts, cohort in cohorts.items()
        }
        cohort_of = [of_parts.get(parts, most) for parts in parts_of]
        rows.append([(statistics.mean(each), statistics.pstdev(each)) for each in cohort_of])
    return rows


def scaled(queries, gallery, *arguments):
    """`distances` by their `scales`."""
    rows = distances(queries, gallery, *arguments[:-1])
    return [
        [(far - mean) / deviation for far, (mean, deviation) in zip(row, line, strict=True)]
        for row, line in zip(rows, scales(queries, gallery, *arguments), strict=True)
    ]


def squared_distance(one, other):
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
