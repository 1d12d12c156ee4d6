"""Search (docs/search.md), one query and one gallery sample at a time."""

from tests.reference.cross_modal import squared_distance


def nearest(query_features, gallery_features, names, top):
    """Features are lists of lists of numbers: → list per query of the nearest (distance, name), the nearest first."""
    gallery = list(zip(gallery_features, names, strict=True))
    return [
        sorted((squared_distance(feature, other), name) for other, name in gallery)[:top]
        for feature in query_features
    ]
