"""Features of triplets that lack modalities, for tests of their distance."""

import numpy as np
import torch
import torch.nn.functional as F

from demo_sdtps.config import MODALITIES
from demo_sdtps.evaluation.distances import Comparison
from demo_sdtps.modeling.modalities import SUBSETS

PRESENT = {
    "R": {"RGB"},
    "N": {"NI"},
    "T": {"TI"},
    "RN": {"RGB", "NI"},
    "RT": {"RGB", "TI"},
    "NT": {"NI", "TI"},
    "RNT": {"RGB", "NI", "TI"},
}
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
