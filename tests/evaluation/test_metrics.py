"""mAP, CMC and mINP against the reference system's numbers and against plain loops, and the numbers of demo-sdtps analyse."""

import numpy as np
import pytest
import torch
from golden_cases import load_case
from numeric import generator
from ranking_cases import LargestResult, assert_same, labels_of, random_case, rank_distances

from demo_sdtps.config import UserError
from demo_sdtps.evaluation import distances, metrics
from demo_sdtps.evaluation.metrics import evaluate_ranking
from tests.reference import analysis as plain
from tests.reference import ranking


def by_loops(case, places=None, max_rank=50):
    features = [side.double().tolist() for side in case[:2]]
    labels = [side.tolist() for side in (*case[2:4], *(places or case[4:]))]
    return ranking.evaluate(*features, *labels, max_rank=max_rank)


@pytest.mark.parametrize("protocol", ["market", "msvr310"])
def test_golden(protocol):
    arrays = load_case("evaluation").arrays
    names = ("features", "ids", "cams", "scenes")
    *case, query_scenes, gallery_scenes = (
        arrays[f"{side}_{name}"] for name in names for side in ("query", "gallery")
    )
    scenes = {"query_scenes": query_scenes, "gallery_scenes": gallery_scenes}
    actual = evaluate_ranking(*case, **scenes if protocol == "msvr310" else {})
    assert_same(actual, arrays[f"{protocol}_cmc"].tolist(), float(arrays[f"{protocol}_map"]))
    assert abs(float(arrays["market_map"]) - float(arrays["msvr310_map"])) > 1e-3


@pytest.mark.parametrize("by_scene", [False, True])
@pytest.mark.parametrize(
    ("seed", "gallery", "identities", "max_rank"),
    [
        (0, 120, 9, 50),
        (1, 200, 5, 50),
        (2, 51, 3, 50),
        (3, 7, 3, 50),
        (4, 120, 90, 1),
        (5, 99, 3, 200),
    ],
)
def test_random_cases_against_loops(seed, gallery, identities, max_rank, by_scene):
    """Also where some queries have no match, and where the curve is longer than the gallery."""
    case, places, scenes = random_case(seed, 40, gallery, identities), None, {}
    if by_scene:
        places = [torch.randint(5, (len(side),), generator=generator(seed)) for side in case[:2]]
        scenes = dict(zip(("query_scenes", "gallery_scenes"), places, strict=True))
    actual = evaluate_ranking(*case, **scenes, max_rank=max_rank)
    assert_same(actual, *by_loops(case, places, max_rank))
    assert actual.cmc.shape == (max_rank,) and actual.rank(1) == actual.cmc[0]


@pytest.mark.parametrize("levels", [1, 3, 50, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_matches_rank_after_others_as_far(levels, dtype):
    """By distances that no features have, many of them equal, whatever the order of the gallery."""
    case, draws = random_case(40, identities=5), generator(40)
    distance = torch.randn(40, 120, generator=draws, dtype=dtype)
    if levels:
        distance = torch.randint(-1, levels, (40, 120), generator=draws).to(dtype)
    expected = ranking.evaluate_distances(distance.tolist(), *(side.tolist() for side in case[2:]))
    assert_same(rank_distances(distance, *case[2:]), *expected)
    order = torch.randperm(120, generator=draws)
    labels = case[2], case[3][order], case[4], case[5][order]
    assert_same(rank_distances(distance[:, order], *labels), *expected)


@pytest.mark.parametrize("elements", [1, 1000])
def test_blocks_of_queries_do_not_change_the_result(monkeypatch, elements):
    case = random_case(1)
    whole = evaluate_ranking(*case)
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", 0)
    monkeypatch.setattr(distances, "BLOCK_ELEMENTS", elements)
    assert_same(evaluate_ranking(*case), whole.cmc.tolist(), whole.mAP, whole.mINP)


def test_the_distances_of_all_queries_are_never_there_at_once(monkeypatch):
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", 0)
    monkeypatch.setattr(distances, "BLOCK_ELEMENTS", 2000)
    with LargestResult() as watched:
        evaluate_ranking(*random_case(2, queries=500, gallery=100, dim=2))
    assert watched.elements == 2000


def test_features_of_half_precision_and_with_gradients_are_compared_in_float32():
    case = random_case(4)
    halves = [side.bfloat16() for side in case[:2]]
    actual = evaluate_ranking(halves[0].requires_grad_(), halves[1], *case[2:])
    assert_same(actual, *by_loops((*halves, *case[2:])))


WRONG = {
    "no identity in common": (UserError, lambda case: [*case[:3], case[3] + 100, *case[4:]]),
    "one camera": (UserError, lambda case: [*case[:4], 0 * case[4], 0 * case[5]]),
    "no gallery": (
        UserError,
        lambda case: [each[: 40 * (1 - n % 2)] for n, each in enumerate(case)],
    ),
    "too few identities": (ValueError, lambda case: [*case[:2], case[2][1:], *case[3:]]),
    "too few cameras": (ValueError, lambda case: [*case[:5], case[5][1:]]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_ranked_is_refused(name):
    error, change = WRONG[name]
    with pytest.raises(error) as refused:
        evaluate_ranking(*change(random_case(0)))
    assert error is UserError or "features" in str(refused.value)


def test_scenes_of_one_side_are_refused():
    case = random_case(0)
    with pytest.raises(ValueError, match="scenes"):
        evaluate_ranking(*case, query_scenes=case[4])


class Case:
    """Queries and a gallery with ties among their distances, queries without a match, and a camera that only one side has."""

    def __init__(self, by, queries=30, gallery=70):
        draws = generator(1)

        def labels(count, kinds):
            return torch.randint(kinds, (count,), generator=draws)

        self.ids = [labels(queries, 9), labels(gallery, 7)]
        self.ids[0][0] = 8
        self.cameras = [labels(queries, 3), 1 + labels(gallery, 4)]
        self.keys = self.cameras if by == "camera" else [labels(queries, 4), labels(gallery, 4)]
        self.distance = torch.randint(-2, 40, (queries, gallery), generator=draws) / 16
        self.lists = [[v.tolist() for v in pair] for pair in (self.ids, self.cameras, self.keys)]
        self.ranking = (
            distances.matrix_distances(self.distance),
            *labels_of(self.ids, self.keys, self.cameras),
        )
        self.expected = plain.rankings(self.distance.tolist(), self.lists[0], self.lists[2])


@pytest.fixture(params=["camera", "scene"])
def case(request, monkeypatch):
    monkeypatch.setattr(distances, "BLOCK_ELEMENTS", 11 * 70)
    return Case(request.param)


def known(values):
    return [None if np.isnan(value) else pytest.approx(value, abs=1e-12) for value in values]


def test_queries(case):
    actual = metrics.score_queries(*case.ranking)
    averages = [plain.average_precision(line) for line in case.expected]
    assert averages == known(actual.average_precision.tolist()) and None in averages
    assert actual.first_match.tolist() == [plain.first_match(line) for line in case.expected]


def test_nearest(case):
    chosen = torch.randperm(30, generator=generator(3))[:12].numpy()
    actual = metrics.nearest_samples(*case.ranking, chosen, 10)
    for hits, query in zip(actual, chosen.tolist(), strict=True):
        lines = [(hit.distance, hit.is_match, hit.sample) for hit in hits]
        assert lines == case.expected[query][:10]
