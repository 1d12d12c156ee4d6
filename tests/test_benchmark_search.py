"""The benchmark of search: its data, and its reference, never its times."""
import numpy as np
from numeric import assert_close, assert_order, seeded, tolerance
from test_search import stack_of

from demo_sdtps.benchmarks import search


def test_features_are_the_same_in_every_run_and_of_length_1():
    blocks = [search.block(number, 30, 900, 64) for number in (0, 1, search.QUERIES)]
    assert all(np.array_equal(search.block(number, 30, 900, 64), block)
               for number, block in zip((0, 1, search.QUERIES), blocks, strict=True))
    assert_close(np.linalg.norm(np.concatenate(blocks).astype(float), axis=1), np.ones(90), 64, 1)
    assert len(np.unique(np.concatenate(blocks), axis=0)) == 90


def test_torchs_top_k_by_blocks_is_that_of_all_distances():
    gallery, queries = search.block(seeded(), 50, 50, 16), search.block(search.QUERIES, 4, 50, 16)
    distances = ((queries[:, None].astype(float) - gallery) ** 2).sum(axis=2)
    found = search.torch_nearest(queries, stack_of(gallery, 20), 7)
    lengths = (16, 16, 16, 2)  # squared lengths and a product, of 1 to 2
    assert_order(found.rows, distances, 2 * tolerance(*lengths) * 2)
    assert_close(found.distances, np.take_along_axis(distances, found.rows, axis=1), *lengths, scale=2)
