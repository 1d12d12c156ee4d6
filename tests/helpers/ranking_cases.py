"""Features, also of triplets that lack modalities, distances and labels to rank, and comparisons of rankings."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numeric import assert_close, generator
from torch.utils._python_dispatch import TorchDispatchMode

from demo_sdtps.config import MODALITIES
from demo_sdtps.evaluation.distances import Comparison, matrix_distances
from demo_sdtps.evaluation.metrics import Labels, score_distances
from demo_sdtps.modeling.modalities import SUBSETS


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


PRESENT = {name.upper(): {*names} for name, names in SUBSETS.items()}
"""Sets of modalities by their first letters."""
OWN = [("RGB",), ("NI",), ("TI",)]
ALL_SOURCES = {"3C": OWN, "7C": [*SUBSETS.values()], "13C": [*OWN, *OWN, *SUBSETS.values()]}
"""Modalities of the parts of pattern 1, of HDM's features, and of pattern 3 with SDTPS and HDM."""
WIDTH = 5  # columns of a part


def comparison(sources, how):
    return Comparison([*map(frozenset, sources)], how)


def draw_sides(draws, sources, *sets):
    """Features of length 1, and the sets of modalities that are theirs."""
    features = (
        torch.randn(len(side), len(sources) * WIDTH, generator=draws).double() for side in sets
    )
    present = (present_in(side) for side in sets)
    return list(zip((F.normalize(side).float() for side in features), present, strict=True))


def present_in(sets):
    """`present` (n, 3) of sets of modalities."""
    return np.array([[name in each for name in MODALITIES] for each in sets])


def shuffled(draws, copies):
    """Every set of modalities so many times."""
    sets = copies * [*PRESENT.values()]
    return [sets[place] for place in torch.randperm(len(sets), generator=draws)]


def split_parts(features):
    """Lists of parts, lists of numbers."""
    return features.double().unflatten(1, (-1, WIDTH)).tolist()


def distance_lengths(sources):
    """Of the sums of a distance, for `numeric.tolerance`: two norms, and twice the columns."""
    return (*4 * (len(sources) * WIDTH,), 9)


def scaled_errors(scaled, scales):
    """The `scale` of scaled distances: distances and their mean are up to 4, and are divided by the deviation."""
    least = min(deviation for row in scales for _, deviation in row)
    return 4 * (1 + np.abs(scaled[np.isfinite(scaled)]).max(initial=0)) / least
