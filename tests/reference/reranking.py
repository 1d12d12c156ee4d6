"""k-reciprocal re-ranking (Zhong et al. 2017; docs/method.md, Evaluation), one sample at a time."""

import math


def k_reciprocal(query_features, gallery_features, k1=50, k2=15, lambda_value=0.3):
    """Features are lists of lists of numbers: → list per query of its distances to the gallery."""
    features = [normalise(feature) for feature in [*query_features, *gallery_features]]
    distances = [relative_distances(feature, features) for feature in features]
    return k_reciprocal_by(distances, len(query_features), k1, k2, lambda_value)


def k_reciprocal_by(distances, query_count, k1=50, k2=15, lambda_value=0.3):
    """Distances of all samples, the queries first, a list for each: → as `k_reciprocal`."""
    distances = [[distance / max(row) for distance in row] for row in distances]
    order = [neighbours(sample, row) for sample, row in enumerate(distances)]
    sets = expanded_sets(order, k1)
    rows = [weights(members, distances[sample]) for sample, members in enumerate(sets)]
    rows = [mean([rows[other] for other in nearest[:k2]]) for nearest in order]
    queries = range(query_count)
    gallery = range(query_count, len(distances))
    return [
        [
            (1 - lambda_value) * jaccard(rows[query], rows[other])
            + lambda_value * distances[query][other]
            for other in gallery
        ]
        for query in queries
    ]


def normalise(feature):
    length = math.sqrt(sum(number**2 for number in feature))
    return [number / length for number in feature]


def relative_distances(feature, others):
    row = [sum((a - b) ** 2 for a, b in zip(feature, other, strict=True)) for other in others]
    return [distance / max(row) for distance in row]


def neighbours(sample, distances):
    """All samples, the nearest first: the sample itself, then by distance, those as far by place."""
    return sorted(
        range(len(distances)), key=lambda other: (other != sample, distances[other], other)
    )


def reciprocal_set(sample, k, order):
    """Those of the k nearest (after the sample) that have the sample among their own k nearest."""
    return {other for other in order[sample][: k + 1] if sample in order[other][: k + 1]}


def expanded_sets(order, k1):
    """The reciprocal set of each sample with the smaller sets of its members that lie in it to more than 2/3."""
    sets = []
    for sample in range(len(order)):
        original = reciprocal_set(sample, k1, order)
        expanded = set(original)
        for member in original:
            candidate = reciprocal_set(member, round(k1 / 2), order)
            if 3 * len(candidate & original) > 2 * len(candidate):
                expanded |= candidate
        sets.append(expanded)
    return sets


def weights(members, distances):
    """One sample's row of V: {member: weight}, of sum 1."""
    row = {member: math.exp(-distances[member]) for member in members}
    total = sum(row.values())
    return {member: weight / total for member, weight in row.items()}


def mean(rows):
    total = {}
    for row in rows:
        for member, weight in row.items():
            total[member] = total.get(member, 0) + weight / len(rows)
    return total


def jaccard(first, second):
    """1 - Σ min / Σ max, where two rows of sum 1 have Σ max = 2 - Σ min."""
    shared = sum(
        min(weight, second[member]) for member, weight in first.items() if member in second
    )
    return 1 - shared / (2 - shared)
