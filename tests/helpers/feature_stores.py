"""Features in stores and shards, and the same in one array."""

import numpy as np

from demo_sdtps.retrieval.store import FeatureBlocks, Gallery


def whole_of(feature_set):
    return feature_set.features.take(feature_set.features.rows)


def stack_of(features, size=7):
    """In shards of `size` rows, the last a smaller one."""
    shards = np.split(features, range(size, len(features), size))
    sizes = [len(shard) for shard in shards]
    return FeatureBlocks(sizes, features.shape[1], lambda shard, rows: shards[shard][rows])


def gallery_of(features, names, present=None, size=7):
    """A gallery of complete triplets, unless it is told what is present."""
    present = np.ones((len(features), 3), bool) if present is None else present
    return Gallery(stack_of(features, size), present, names)
