"""k-reciprocal re-ranking against the reference system's numbers and against plain loops."""

import pytest
import torch
import torch.nn.functional as F
from commands import squared_distances
from golden_cases import load_case
from numeric import assert_close, generator, tolerance
from ranking_cases import LargestResult, rank_distances
from tiny import equal

from demo_sdtps.evaluation import distances
from demo_sdtps.evaluation.distances import Comparison, complete_side, k_reciprocal
from tests.reference import reranking as plain


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


def clusters(seed, queries=20, gallery=60, identities=8, dim=8, spread=0.5, ranks=slice(None)):
    """Query and gallery features of so many identities, drawn again where roundings decide on the order (`near_ties`)."""
    draws = generator(seed)
    centres = torch.randn(identities, dim, generator=draws)
    identity = torch.randint(identities, (queries + gallery,), generator=draws)
    features = centres[identity] + spread * torch.randn(queries + gallery, dim, generator=draws)
    while (again := near_ties(features, ranks)).any():
        features[again] = centres[identity[again]] + spread * torch.randn(
            int(again.sum()), dim, generator=draws
        )
    return features[:queries], features[queries:]


def by_loops(query, gallery, *settings):
    return torch.tensor(
        plain.k_reciprocal(query.double().tolist(), gallery.double().tolist(), *settings),
        dtype=torch.double,
    )


def assert_same(actual, expected, sides):
    lengths, scale = roundings(*sides)
    assert actual.dtype == torch.float32
    assert_close(actual, expected, *lengths, scale=scale)


def golden():
    case = load_case("evaluation")
    settings = case.settings["rerank"]
    return case.arrays, (settings["k1"], settings["k2"], settings["lambda_value"])


def test_golden():
    arrays, settings = golden()
    actual = k_reciprocal(arrays["query_features"], arrays["gallery_features"], *settings)
    expected = arrays["rerank_distance"]
    assert (actual - expected).abs().max() < 5e-3 * expected.abs().max()
    ranking = rank_distances(
        actual,
        *(arrays[name] for name in ("query_ids", "gallery_ids", "query_cams", "gallery_cams")),
    )
    assert ranking.mAP == pytest.approx(float(arrays["rerank_map"]), abs=1e-3)
    scored = 56  # queries with a match: the curves move in such steps, and float16 may cost the reference one
    assert (ranking.cmc - arrays["rerank_cmc"].cpu()).abs().max() < 1.5 / scored


@pytest.mark.parametrize(
    ("queries", "gallery", "settings"),
    [
        (20, 60, (10, 4, 0.3)),
        (20, 60, (11, 6, 0.5)),
        (20, 60, (10, 1, 0.3)),
        (20, 60, (1, 1, 0.3)),
        (20, 60, (2, 3, 0.0)),
        (20, 60, (3, 2, 1.0)),
        (20, 60, (5, 9, 0.1)),
        (20, 60, (80, 80, 0.3)),
        (40, 30, (20, 6, 0.3)),
        (1, 50, (6, 3, 0.3)),
        (30, 1, (6, 3, 0.3)),
        (1, 1, (50, 15, 0.3)),
        (30, 90, ()),
    ],
)
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_random_features_against_loops(queries, gallery, settings, spread):
    sides = clusters(queries + gallery + len(settings), queries, gallery, spread=spread)
    assert_same(k_reciprocal(*sides, *settings), by_loops(*sides, *settings), sides)


@pytest.mark.parametrize("seed", range(4))
def test_neighbourhoods_that_are_expanded(seed):
    k1 = 8 + seed
    sides = clusters(seed, 30, 60, identities=6, spread=0.6)
    features = F.normalize(torch.cat(sides).double(), dim=1).tolist()
    order = [
        plain.neighbours(place, plain.relative_distances(feature, features))
        for place, feature in enumerate(features)
    ]
    originals = [plain.reciprocal_set(place, k1, order) for place in range(len(features))]
    grown = sum(
        after > before
        for after, before in zip(plain.expanded_sets(order, k1), originals, strict=True)
    )
    assert grown > len(features) / 4
    assert_same(k_reciprocal(*sides, k1, 4, 0.2), by_loops(*sides, k1, 4, 0.2), sides)


@pytest.mark.parametrize("settings", [(10, 4, 0.3), (3, 1, 0.3), (2, 6, 0.0), (30, 10, 0.3)])
def test_the_same_images_in_query_and_gallery(settings):
    """As in RGBNT201; every image has a twin at distance 0 and equal distances to all the others."""
    samples = torch.cat(clusters(5, 10, 25))
    for sides in (
        (samples, samples),
        (samples, samples.flip(0)),
        (samples[:9], samples.repeat(2, 1)),
    ):
        assert_same(k_reciprocal(*sides, *settings), by_loops(*sides, *settings), sides)


@pytest.mark.parametrize("k2", [1, 2, 3])
def test_more_twins_than_neighbours(k2):
    """A sample, of which some twins are in the gallery, is its own neighbour all the same."""
    query, gallery = clusters(6, 4, 12)
    sides = query.repeat(6, 1), torch.cat([gallery, query]).repeat(6, 1)
    assert_same(k_reciprocal(*sides, 4, k2), by_loops(*sides, 4, k2), sides)


@pytest.mark.parametrize("kept", [0, 300**2])
def test_twins_are_exactly_as_far(monkeypatch, kept):
    """Whatever the processor does with the rows of a block; of wide features, where sums come out differently."""
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", kept)
    monkeypatch.setattr(distances, "BLOCK_ELEMENTS", 7 * 300)
    features = F.normalize(torch.cat(clusters(6, 40, 60, dim=517, ranks=[])), dim=1)
    sides = complete_side(features.repeat(2, 1)), complete_side(features)
    pairs = distances.pair_distances(Comparison(), *sides)
    distance = torch.cat([block for _, block in pairs.blocks()])
    assert (distance.diagonal() == 0).all()
    assert torch.equal(distance, distance[:, :100].repeat(1, 3))
    assert (distance[:100, :100] - squared_distances(features)).abs().max() < cosine_error(517)
    if kept:
        assert torch.equal(distance, distance[:100].repeat(3, 1))


def test_features_that_are_all_the_same():
    actual = k_reciprocal(torch.ones(5, 4), torch.ones(20, 4), 6, 3)
    assert actual.isfinite().all()
    assert 0 <= actual.min() <= actual.max() <= 1


@pytest.mark.parametrize("elements", [1, 99, 100, 1234])
def test_blocks_do_not_change_the_result(monkeypatch, elements):
    samples = torch.cat(clusters(8, 10, 20))
    sides = samples[:20], samples  # with ties
    expected = by_loops(*sides, 9, 4)
    monkeypatch.setattr(distances, "BLOCK_ELEMENTS", elements)
    for kept in (distances.KEPT_ELEMENTS, 0):
        monkeypatch.setattr(distances, "KEPT_ELEMENTS", kept)
        assert_same(k_reciprocal(*sides, 9, 4), expected, sides)


def test_all_pairs_are_never_there_at_once(monkeypatch):
    monkeypatch.setattr(distances, "BLOCK_ELEMENTS", 8000)
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", 0)
    sides = clusters(9, 10, 590, identities=60, ranks=[])
    with LargestResult() as watched:
        k_reciprocal(*sides, 6, 3)
    assert watched.elements < 600**2 / 20


def test_features_are_normalised_and_left_as_they_are():
    sides = clusters(11)
    copies = [side.clone() for side in sides]
    actual = k_reciprocal(*sides, 9, 4)
    assert equal(sides, copies)
    longer = [side * torch.arange(1, len(side) + 1)[:, None] for side in sides]
    assert_same(k_reciprocal(*longer, 9, 4), by_loops(*sides, 9, 4), sides)
    assert torch.equal(k_reciprocal(*sides, 9, 4), actual)
