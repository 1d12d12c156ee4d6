"""The nearest of a gallery: exact search, ties, re-ranking, and sets of modalities."""

import numpy as np
import pytest
import torch
from numeric import assert_close, assert_order, generator, numpy_generator, tolerance
from ranking_cases import (
    ALL_SOURCES,
    comparison,
    distance_lengths,
    draw_sides,
    present_in,
    scaled_errors,
    shuffled,
    split_parts,
)

from demo_sdtps.evaluation import distances as distance_module
from demo_sdtps.evaluation.distances import rerank
from demo_sdtps.retrieval import nearest
from tests.reference import cross_modal
from tests.reference import search as reference


def random_features(generator, count, width=24, copies=0):
    """Features (count, width) of length 1, the last `copies` copies of earlier ones."""
    features = generator.standard_normal((count, width)).astype(np.float32)
    features[count - copies :] = features[generator.integers(0, count - copies, copies)]
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def short_features(generator, *shape, **copies):
    """Of length about 1, and so short that their distances are exact in float32: no rounding decides which is nearer."""
    return (64 * random_features(generator, *shape, **copies)).round() / 64


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(nearest, "PRODUCT_ELEMENTS", 7 * 8)
    monkeypatch.setattr(nearest, "GROUP", 2)
    monkeypatch.setattr(nearest, "SPARE", 0)


def search(queries, gallery, top):
    """`nearest` of arrays."""
    return nearest.nearest(torch.from_numpy(queries), torch.from_numpy(gallery), top)


def test_distances_are_sums_of_doubles():
    draws = numpy_generator(3)
    queries, features = random_features(draws, 6, 512), random_features(draws, 40, 512)
    features[:6] = queries + np.float32(1e-4) * features[:6]
    rows = np.arange(40)[None].repeat(6, axis=0)
    actual = nearest.distances(*map(torch.from_numpy, (queries, features)), rows)
    expected = np.square(features[None].astype(float) - queries[:, None]).sum(axis=2)
    assert np.abs(actual / expected - 1).max() <= np.finfo(np.float32).eps / 2


@pytest.mark.parametrize("top", [1, 5, 60])
def test_exact_search_is_the_slow_one_ties_included(top):
    """Half of the gallery are copies, and some queries too, so that ties lie at the last rank; they are in their order."""
    generator = numpy_generator(1)
    gallery = short_features(generator, 60, copies=30)
    queries = np.concatenate([short_features(generator, 4), gallery[:4]])
    actual = search(queries, gallery, top)
    expected = reference.nearest(queries.tolist(), gallery.tolist(), range(60), top)
    for rows, distances, line in zip(actual.rows, actual.distances, expected, strict=True):
        assert rows.tolist() == [row for _, row in line]
        assert distances.tolist() == [distance for distance, _ in line]


def test_many_equal_samples_at_the_last_rank_are_all_compared():
    """More of them than there are candidates at first, wherever they are."""
    gallery = np.repeat(random_features(numpy_generator(3), 2), 50, axis=0)
    assert search(gallery[60:61], gallery, 3).rows[0].tolist() == [50, 51, 52]


def test_features_of_any_length_are_searched_exactly():
    """Products round the distances of these by more than they differ."""
    draws = numpy_generator(8)
    gallery = (100 + draws.standard_normal((200, 24)) / 50).astype(np.float32)
    far = np.square(gallery[:5, None].astype(float) - gallery).sum(axis=2)
    actual = search(gallery[:5], gallery, 3)
    assert np.array_equal(actual.rows, far.argsort(axis=1)[:, :3])


def assert_hits(hits, sources, expected, orders, errors):
    """They are the slow ones, but for roundings, ordered by scaled distances; row -1 where no distance is left."""
    lengths = (*distance_lengths(sources), 73)
    for rows, far, line, order in zip(*hits, expected, orders, strict=True):
        count = min(len(rows), np.isfinite(line).sum())
        assert (rows[count:] == -1).all() and np.isinf(far[count:]).all()
        if count:
            assert_order(rows[:count], order, 2 * tolerance(*lengths) * errors)
            assert_close(far[:count], np.array(line)[rows[:count]], *lengths, scale=4)


@pytest.mark.parametrize("how", ["all", "shared"])
def test_one_list_of_triplets_of_all_sets(monkeypatch, how):
    """Of a gallery in blocks. 43 triplets have RGB, 10 all, fewer than a scale needs."""
    monkeypatch.setattr(distance_module, "FEWEST", 15)
    draws, sources = generator(12), ALL_SOURCES["7C"]
    sets = [shuffled(draws, 2), [*shuffled(draws, 10), *3 * [{"RGB"}]]]
    query, gallery = draw_sides(draws, sources, *sets)
    slow = split_parts(query[0]), split_parts(gallery[0]), sources, *sets, how
    scaled = np.array(cross_modal.scaled(*slow, distance_module.FEWEST))
    errors = scaled_errors(scaled, cross_modal.scales(*slow, distance_module.FEWEST))
    expected = cross_modal.distances(*slow), scaled, errors
    kept = nearest.Gallery(comparison(sources, how), gallery)
    for top in (1, 9, 70):
        hits = nearest.search_sets(query, kept, top)
        assert_hits(hits, sources, *expected)


def test_equal_hits_of_several_sets_are_in_their_order():
    """Those of RGB and of RGB and NI have the same distance from a query in RGB."""
    sources, both = ALL_SOURCES["3C"], {"RGB", "NI"}
    query, (features, _) = draw_sides(generator(13), sources, [{"RGB"}], 4 * [{"RGB"}])
    features[:], features[:, 0] = 0, 1
    gallery = features, present_in([both, {"RGB", "TI"}, both, both])
    hits = nearest.search_sets(query, nearest.Gallery(comparison(sources, "shared"), gallery), 4)
    assert hits.rows[0].tolist() == [0, 1, 2, 3] and len(set(hits.distances[0])) == 1


def test_re_ranking_of_hits_of_several_sets():
    """Of those that have a distance."""
    draws, sources = generator(14), ALL_SOURCES["7C"]
    sets = [shuffled(draws, 1), shuffled(draws, 6)]
    query, (features, present) = draw_sides(draws, sources, *sets)
    how, gallery = comparison(sources, "shared"), (features, present)
    hits = nearest.search_sets(query, nearest.Gallery(how, gallery), 42)
    actual = nearest.rerank_hits(how, query, gallery, hits, 42)
    for number, rows in enumerate(hits.rows):
        rows = np.sort(rows[rows >= 0])
        one = query[0][[number]], query[1][[number]]
        expected = rerank(how, one, (features[rows], present[rows]))[0].numpy()
        order = np.searchsorted(rows, actual.rows[number][: len(rows)])
        assert np.array_equal(np.sort(order), np.arange(len(rows)))
        assert np.array_equal(expected[order], actual.distances[number][: len(rows)])
        assert (np.diff(expected[order]) >= 0).all()
        assert (actual.rows[number][len(rows) :] < 0).all()
