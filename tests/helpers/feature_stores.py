"""Features in stores and shards, and the same in one array."""

import numpy as np

from demo_sdtps.retrieval.store import Stack


def whole_of(feature_set):
    return np.concatenate([block for _, block in feature_set.features])


def stack_of(features, size=7):
    """In shards of `size` rows, the last a smaller one."""
    shards = np.split(features, range(size, len(features), size))
    return Stack(
        [len(shard) for shard in shards],
        features.shape[1],
        lambda number, slices: np.concatenate([shards[number][rows] for rows in slices]),
    )
