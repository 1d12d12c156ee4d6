"""Ranking and re-ranking in NumPy by whole matrices, sorted rows and a loop over queries, as in code such as DeMo's."""

import numpy as np


def evaluate_distances(
    distance, query_ids, gallery_ids, query_exclude_keys, gallery_exclude_keys, max_rank=50
):
    """Distances (Q, G), identities and exclude keys (cameras or scenes) (Q,) and (G,) → (CMC (max_rank,), mAP)."""
    order = np.argsort(distance, axis=1)
    is_same = (gallery_ids[order] == query_ids[:, None]).astype(np.int32)
    curves, average_precisions = [], []
    for query, nearest in enumerate(order):
        is_excluded = (gallery_ids[nearest] == query_ids[query]) & (
            gallery_exclude_keys[nearest] == query_exclude_keys[query]
        )
        hit = is_same[query][~is_excluded]
        if not hit.any():
            continue
        hits = hit.cumsum()
        curve = np.minimum(hits[:max_rank], 1)
        curves.append(np.pad(curve, (0, max_rank - len(curve)), mode="edge"))
        precision = hits / np.arange(1, len(hit) + 1)
        average_precisions.append((precision * hit).sum() / hit.sum())
    return np.mean(curves, axis=0), np.mean(average_precisions)


def k_reciprocal(query_features, gallery_features, k1=50, k2=15, lambda_value=0.3):
    """L2-normalised features (Q, D) and (G, D) float32 → (Q, G); weights in float16 (docs/method.md)."""
    queries = len(query_features)
    features = np.concatenate([query_features, gallery_features])
    samples = len(features)
    length = np.square(features).sum(1)
    distance = length[:, None] + length[None, :] - 2 * features @ features.T
    distance = (distance / distance.max(1, keepdims=True)).astype(np.float32)
    order = np.argsort(distance, axis=1).astype(np.int32)

    weights = np.zeros((samples, samples), np.float16)
    for sample in range(samples):
        original = _reciprocal(order, sample, k1)
        expanded = original
        for member in original:
            candidate = _reciprocal(order, member, round(k1 / 2))
            if 3 * len(np.intersect1d(candidate, original)) > 2 * len(candidate):
                expanded = np.append(expanded, candidate)
        expanded = np.unique(expanded)
        weight = np.exp(-distance[sample, expanded])
        weights[sample, expanded] = weight / weight.sum()
    if k2 > 1:
        means = np.zeros_like(weights)
        for sample in range(samples):
            means[sample] = weights[order[sample, :k2]].mean(0)
        weights = means

    having = [np.flatnonzero(weights[:, column]) for column in range(samples)]
    jaccard = np.zeros((queries, samples), np.float16)
    for query in range(queries):
        shared = np.zeros(samples, np.float16)
        for column in np.flatnonzero(weights[query]):
            others = having[column]
            shared[others] += np.minimum(weights[query, column], weights[others, column])
        jaccard[query] = 1 - shared / (2 - shared)
    return ((1 - lambda_value) * jaccard + lambda_value * distance[:queries])[:, queries:]


def _reciprocal(order, sample, k):
    """k-reciprocal neighbours of a sample, including itself."""
    nearest = order[sample, : k + 1]
    return nearest[(order[nearest, : k + 1] == sample).any(1)]
