"""The ranking evaluation against the reference system's numbers and against plain loops."""

import pytest
import torch
from commands import distance_rounding
from golden_cases import load_case
from numeric import generator
from ranking_cases import LargestResult, assert_same, in_parts, random_case, rank_distances

from demo_sdtps.config import UserError
from demo_sdtps.evaluation import distances
from demo_sdtps.evaluation.distances import squared_distances
from demo_sdtps.evaluation.metrics import evaluate_ranking, score_distances
from tests.reference import ranking


def by_loops(case, places=None, max_rank=50):
    features, labels = case[:2], case[2:4]
    doubles = [side.double().tolist() for side in features]
    return ranking.evaluate(
        *doubles,
        *(side.tolist() for side in labels),
        *(side.tolist() for side in places or case[4:6]),
        max_rank=max_rank,
    )


def golden():
    arrays = load_case("evaluation").arrays
    names = (
        "query_features",
        "gallery_features",
        "query_ids",
        "gallery_ids",
        "query_cams",
        "gallery_cams",
    )
    return arrays, [arrays[name] for name in names]


def test_golden_market():
    arrays, case = golden()
    assert_same(evaluate_ranking(*case), arrays["market_cmc"].tolist(), float(arrays["market_map"]))


def test_golden_msvr310():
    arrays, case = golden()
    actual = evaluate_ranking(
        *case, query_scenes=arrays["query_scenes"], gallery_scenes=arrays["gallery_scenes"]
    )
    assert_same(actual, arrays["msvr310_cmc"].tolist(), float(arrays["msvr310_map"]))
    assert abs(actual.mAP - float(arrays["market_map"])) > 1e-3  # the scenes make a difference


def test_golden_distance():
    arrays, case = golden()
    error = (squared_distances(*case[:2]) - arrays["distance"]).abs().max()
    assert error < 2 * distance_rounding(torch.cat(case[:2]))  # of both


def test_golden_re_ranked_distances():
    arrays, case = golden()
    actual = rank_distances(arrays["rerank_distance"], *case[2:])
    assert_same(actual, arrays["rerank_cmc"].tolist(), float(arrays["rerank_map"]))
    assert abs(actual.mAP - float(arrays["market_map"])) > 0.05


@pytest.mark.parametrize("seed", range(6))
def test_random_cases_against_loops(seed):
    case = random_case(
        seed,
        queries=10 + 7 * seed,
        gallery=60 + 20 * seed,
        identities=3 + 2 * seed,
        places=2 + seed % 3,
    )
    assert_same(evaluate_ranking(*case), *by_loops(case))


@pytest.mark.parametrize("seed", range(3))
def test_scenes_take_the_cameras_place(seed):
    case = random_case(seed)
    scenes = tuple(
        torch.randint(5, (len(side),), generator=generator(seed + 50)) for side in case[:2]
    )
    actual = evaluate_ranking(*case, query_scenes=scenes[0], gallery_scenes=scenes[1])
    assert_same(actual, *by_loops(case, scenes))
    other_cameras = (*case[:4], torch.zeros_like(case[4]), torch.zeros_like(case[5]))
    again = evaluate_ranking(*other_cameras, query_scenes=scenes[0], gallery_scenes=scenes[1])
    assert again.mAP == actual.mAP  # cameras play no part then


@pytest.mark.parametrize("scenes", [False, True])
def test_given_distances_are_ranked_as_they_are(scenes):
    """Distances that no features have: some below 0, no two sides alike."""
    case = random_case(7)
    distance = torch.randn(40, 120, generator=generator(70))
    places = (case[4] % 3, case[5] % 3) if scenes else case[4:]
    expected = ranking.evaluate_distances(
        distance.tolist(), *(side.tolist() for side in (*case[2:4], *places)), max_rank=9
    )
    assert_same(rank_distances(distance, *case[2:4], *places, max_rank=9), *expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_parts_with_ties(dtype):
    """Many equal distances, queries of no match and of many."""
    case = random_case(12, identities=9)
    distance = (10 * squared_distances(*case[:2])).round().to(dtype)
    actual = score_distances(in_parts(distance, 50), case[2:4], case[4:])
    expected = ranking.evaluate_distances(distance.tolist(), *(side.tolist() for side in case[2:]))
    assert_same(actual, *expected)


def test_gradients_are_not_needed():
    case = random_case(11)
    assert evaluate_ranking(case[0].requires_grad_(), *case[1:]).mAP > 0
    assert rank_distances(squared_distances(*case[:2]), *case[2:]).mAP > 0


def test_a_ranking_worked_out_by_hand():
    """One query at 0 and a gallery at 1, 2, … 5: left out, miss, hit, miss, hit → ranks 2 and 4 of those that remain."""
    query, gallery = torch.zeros(1, 1), torch.arange(1.0, 6.0)[:, None]
    actual = evaluate_ranking(
        query,
        gallery,
        torch.tensor([7]),
        torch.tensor([7, 8, 7, 9, 7]),
        torch.tensor([0]),
        torch.tensor([0, 0, 1, 0, 2]),
        max_rank=6,
    )
    assert actual.mAP == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert actual.cmc.tolist() == [0, 1, 1, 1, 1, 1]
    assert [actual.rank(k) for k in (1, 2, 5)] == [0, 1, 1]


@pytest.mark.parametrize(
    "same", ["identities differ", "cameras are the same", "no queries", "no gallery"]
)
def test_no_query_with_a_match_is_reported(same):
    case = list(random_case(0, queries=6, gallery=10, places=2))
    if same == "identities differ":
        case[3] = case[3] + 100
    elif same == "cameras are the same":
        case[4], case[5] = torch.zeros_like(case[4]), torch.zeros_like(case[5])
    else:
        for index in (0, 2, 4) if same == "no queries" else (1, 3, 5):
            case[index] = case[index][:0]
    with pytest.raises(UserError, match=r"No query has a match.*check the identities and cameras"):
        evaluate_ranking(*case)


def test_queries_without_a_match_change_nothing():
    """Also not the rates of all pairs, though they have the gallery's own features."""
    ids, others = torch.arange(6), torch.arange(120) % 6
    sides = torch.eye(6)[ids], torch.eye(6)[others], ids, others, 0 * ids, 0 * others + 1
    more = torch.cat([sides[0], sides[1]]), sides[1], torch.cat([ids, others + 6]), others
    actual = evaluate_ranking(*more, torch.zeros(126), sides[5])
    expected = evaluate_ranking(*sides)
    assert torch.equal(actual.cmc, expected.cmc) and actual.tpr == expected.tpr
    assert (actual.mAP, actual.mINP, *actual.tpr.values()) == (1, 1, 1, 1)


@pytest.mark.parametrize("gallery", [7, 49, 50, 51])
def test_a_short_gallery_pads_the_curve(gallery):
    case = random_case(5, gallery=gallery, identities=3)
    actual = evaluate_ranking(*case)
    assert actual.cmc.shape == (50,)
    assert_same(actual, *by_loops(case))
    assert actual.cmc[-1] == 1


@pytest.mark.parametrize("max_rank", [1, 3, 200])
def test_the_length_of_the_curve(max_rank):
    case = random_case(6, identities=90)  # of which some queries have no match
    actual = evaluate_ranking(*case, max_rank=max_rank)
    assert actual.cmc.shape == (max_rank,)
    assert_same(actual, *by_loops(case, max_rank=max_rank))


@pytest.mark.parametrize("elements", [1, 119, 120, 1000, 4801])
def test_parts_of_the_gallery_do_not_change_the_result(monkeypatch, elements):
    case = random_case(1)
    whole = evaluate_ranking(*case)
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", 0)
    monkeypatch.setattr(distances, "TILE_ELEMENTS", elements)
    parts = evaluate_ranking(*case)
    assert parts.mAP == pytest.approx(whole.mAP, abs=1e-9)
    assert torch.equal(parts.cmc, whole.cmc)


def test_the_distances_of_the_whole_gallery_are_never_there_at_once(monkeypatch):
    """Ten times the gallery or the queries do not need more memory at a time: 50,000 distances, 2,000 at most together."""
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", 0)
    monkeypatch.setattr(distances, "TILE_ELEMENTS", 2000)
    largest = []
    for queries, gallery in ((50, 100), (50, 1000), (500, 100)):
        case = random_case(2, queries=queries, gallery=gallery, identities=gallery // 10, dim=2)
        with LargestResult() as watched:
            evaluate_ranking(*case)
        largest.append(watched.elements)
    assert largest[1] == largest[0] <= 2000, largest
    assert largest[2] < 500 * 100 / 8  # the matches, of which there are a tenth


def test_half_precision_features_are_compared_in_float32():
    case = random_case(4)
    halves = [side.bfloat16() for side in case[:2]]
    actual = evaluate_ranking(*halves, *case[2:])
    assert_same(actual, *by_loops((*halves, *case[2:])))


@pytest.mark.parametrize("index", range(6))
def test_lengths_that_do_not_fit_are_refused(index):
    case = list(random_case(0))
    case[index] = case[index][:-1]
    with pytest.raises(ValueError, match="features have"):
        evaluate_ranking(*case)


@pytest.mark.parametrize("side", ["query_scenes", "gallery_scenes"])
def test_scenes_of_one_side_are_refused(side):
    case = random_case(0)
    with pytest.raises(ValueError, match="scenes for both"):
        evaluate_ranking(*case, **{side: case[4] if side == "query_scenes" else case[5]})
