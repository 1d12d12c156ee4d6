"""mAP and CMC (docs/method.md, Evaluation), one query and one gallery sample at a time."""


def evaluate(
    query_features,
    gallery_features,
    query_ids,
    gallery_ids,
    query_places,
    gallery_places,
    max_rank=50,
):
    """Features are lists of lists of numbers, identities and places (cameras or scenes) lists: → (cmc, mAP).

    (None, None) where no query has a match.
    """
    distances = []
    for feature in query_features:
        distances.append([])
        for other in gallery_features:
            distance = 0.0
            for a, b in zip(feature, other, strict=True):
                distance += (a - b) ** 2
            distances[-1].append(distance)
    return evaluate_distances(
        distances, query_ids, gallery_ids, query_places, gallery_places, max_rank
    )


def evaluate_distances(
    distances, query_ids, gallery_ids, query_places, gallery_places, max_rank=50
):
    """`evaluate` by distances that are there already: a list per query of those to the gallery."""
    average_precisions, curves = [], []
    for row, identity, place in zip(distances, query_ids, query_places, strict=True):
        ranking = []
        for distance, other_identity, other_place in zip(
            row, gallery_ids, gallery_places, strict=True
        ):
            if other_identity == identity and other_place == place:
                continue
            ranking.append((distance, other_identity == identity))
        ranking.sort()
        hits, precisions, curve = 0, [], []
        for rank, (_, is_hit) in enumerate(ranking, start=1):
            if is_hit:
                hits += 1
                precisions.append(hits / rank)
            curve.append(1.0 if hits else 0.0)
        if not hits:
            continue
        average_precisions.append(sum(precisions) / hits)
        curve = curve[:max_rank]
        while len(curve) < max_rank:
            curve.append(curve[-1])
        curves.append(curve)
    if not curves:
        return None, None
    cmc = [sum(curve[rank] for curve in curves) / len(curves) for rank in range(max_rank)]
    return cmc, sum(average_precisions) / len(average_precisions)
