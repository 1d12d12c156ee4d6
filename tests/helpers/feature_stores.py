"""Features in stores and shards, and the same in one array."""

import numpy as np

from demo_sdtps.retrieval.store import FeatureBlocks, Gallery


def read_all(feature_set):
    return feature_set.features.take(feature_set.features.rows)


def make_blocks(features, size=7):
    """In shards of `size` rows, the last a smaller one."""
    shards = np.split(features, range(size, len(features), size))
    sizes = [len(shard) for shard in shards]
    return FeatureBlocks(sizes, features.shape[1], lambda shard, rows: shards[shard][rows])


def make_gallery(features, names, present=None, size=7):
    """A gallery of complete triplets, unless it is told what is present."""
    present = np.ones((len(features), 3), bool) if present is None else present
    return Gallery(make_blocks(features, size), present, names)
