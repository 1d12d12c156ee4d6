"""Search (docs/search.md), one query and one gallery sample at a time."""


def nearest(query_features, gallery_features, names, top):
    """Features are lists of lists of numbers: → list per query of the nearest (distance, name), the nearest first."""
    hits = []
    for feature in query_features:
        distances = []
        for other, name in zip(gallery_features, names, strict=True):
            distance = 0.0
            for a, b in zip(feature, other, strict=True):
                distance += (a - b) ** 2
            distances.append((distance, name))
        hits.append(sorted(distances)[:top])
    return hits
