"""Distances and labels to rank, and comparisons of rankings."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import squared_distances
from numeric import assert_close, generator, tolerance
from torch.utils._python_dispatch import TorchDispatchMode

from demo_sdtps.evaluation.distances import matrix_distances
from demo_sdtps.evaluation.metrics import Labels, score_distances


def random_case(seed, queries=40, gallery=120, identities=9, places=4, dim=8):
    """Keyword arguments of `evaluate_ranking` in its order of positions; random, with features of so few digits that their
    distances are exact in float32, in whatever order they are summed up: no rounding decides on a rank."""
    draws = generator(seed)

    def labels(count, kinds):
        return torch.randint(kinds, (count,), generator=draws)

    return (
        short(torch.randn(queries, dim, generator=draws)),
        short(torch.randn(gallery, dim, generator=draws)),
        labels(queries, identities),
        labels(gallery, identities),
        labels(queries, places),
        labels(gallery, places),
    )


def rank_distances(distance, query_ids, gallery_ids, query_keys, gallery_keys, max_rank=50):
    """The ranking by distances (Q, G), and by identities and cameras, or scenes, of both sides."""
    labels = labels_of((query_ids, gallery_ids), (query_keys, gallery_keys))
    return score_distances(matrix_distances(distance), *labels, max_rank)


def labels_of(ids, keys, cameras=None):
    """`Labels` of queries and gallery, by pairs of identities, of cameras or scenes, and of cameras where these are others."""
    return [
        Labels(*(np.asarray(each) for each in side))
        for side in zip(ids, cameras or keys, keys, strict=True)
    ]


def short(features):
    """Multiples of 1/64, of which products have 12 bits after the point, and sums of products up to 2^11 no more than 24."""
    return (64 * features).round() / 64


def assert_same(actual, cmc, mean_average_precision, inverse_penalty=None):
    """The last is not known of golden cases."""
    assert_close(actual.cmc, cmc, 1)
    assert actual.mAP == pytest.approx(mean_average_precision, abs=1e-9)
    if inverse_penalty:
        assert actual.mINP == pytest.approx(inverse_penalty, abs=1e-9)


class LargestResult(TorchDispatchMode):
    """Watches torch: the number of elements of the largest tensor that any operator returned inside."""

    elements = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def near_ties(features, ranks=slice(None)):
    """Whether roundings decide which sample has one of these ranks (from 0, the sample itself) and which the next: (N,)."""
    gaps = squared_distances(F.normalize(features.double(), dim=1)).sort(dim=1).values.diff(dim=1)
    return (gaps[:, ranks] < 2 * cosine_error(features.shape[1])).any(1)


def cosine_error(dim):
    """What roundings change of 2 - 2·cosine: by norms, a product and a difference."""
    return 2 * tolerance(dim, dim, dim, 2)


def roundings(query, gallery):
    """Lengths and scale of a re-ranked distance's sums. A distance, at most 4, is divided by the farthest, d. Its weight
    changes by as much, relatively; so do the weights' sum and the minima; and 1 - x / (2 - x) by twice as much as x."""
    squared = squared_distances(F.normalize(torch.cat([query, gallery]).double(), dim=1))
    (samples, dim), farthest = (len(squared), query.shape[1]), float(squared.amax(1).min())
    return (dim, dim, dim, samples, samples, samples, 8), 4 * max(1.0, 2 / farthest)
