"""Features as points of a plane, and the command that draws them."""

import numpy as np
import pytest
from numeric import assert_close, numpy_generator

from demo_sdtps.evaluation.analysis import embed

CLUSTERS = 3


def clusters(seed, each=12, width=20):
    """(features (n, width), the cluster of each): far from each other."""
    draws = numpy_generator(seed)
    labels = np.arange(CLUSTERS).repeat(each)
    centres = 10 * draws.standard_normal((CLUSTERS, width))
    return (centres[labels] + draws.standard_normal((len(labels), width))).astype(
        np.float32
    ), labels


@pytest.mark.parametrize("method", ["pca", pytest.param("tsne", marks=pytest.mark.slow)])
def test_clusters_stay_apart_and_a_seed_gives_the_same_points(method):
    features, labels = clusters(seed=1)
    points = embed(features, method, seed=5)
    assert points.shape == (len(labels), 2) and points.dtype == np.float32
    assert np.array_equal(points, embed(features, method, seed=5))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (labels[distance.argmin(axis=1)] == labels).all()


def test_pca_shows_the_directions_of_the_largest_variance():
    """Those of the singular value decomposition, but for their signs."""
    features, _ = clusters(seed=2)
    centred = features.astype(np.float64) - features.astype(np.float64).mean(axis=0)
    expected = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    actual = embed(features, "pca", seed=0)
    signs = np.sign((actual * expected).sum(axis=0))
    assert_close(actual, signs * expected, 1)  # rounded from float64
