"""The numbers of the page and of demo-sdtps analyse, against plain loops, on random distances."""

import numpy as np
import pytest
import torch
from numeric import generator
from ranking_cases import labels_of, rank_distances

from demo_sdtps.evaluation import analysis
from demo_sdtps.evaluation.distances import matrix_distances
from demo_sdtps.evaluation.metrics import score_queries
from tests.reference import analysis as plain


class Case:
    """Queries and a gallery with ties among their distances, queries without a match, and a camera that only one side has."""

    def __init__(self, seed, by="camera", queries=30, gallery=70):
        draws = generator(seed)

        def labels(count, kinds):
            return torch.randint(kinds, (count,), generator=draws)

        self.ids = [labels(queries, 9), labels(gallery, 7)]
        self.ids[0][0] = 8
        self.cameras = [labels(queries, 3), 1 + labels(gallery, 4)]
        self.keys = self.cameras if by == "camera" else [labels(queries, 4), labels(gallery, 4)]
        self.distance = torch.randint(-2, 40, (queries, gallery), generator=draws) / 16
        self.sides = labels_of(self.ids, self.keys, self.cameras)
        self.lists = [
            [values.tolist() for values in pair] for pair in (self.ids, self.cameras, self.keys)
        ]
        self.rankings = plain.rankings(self.distance.tolist(), self.lists[0], self.lists[2])

    @property
    def distances(self):
        return matrix_distances(self.distance)


@pytest.fixture(params=["camera", "scene"])
def case(request, monkeypatch):
    monkeypatch.setattr("demo_sdtps.evaluation.distances.BLOCK_ELEMENTS", 11 * 70)
    return Case(1, request.param)


def known(values):
    return [None if np.isnan(value) else pytest.approx(value, abs=1e-12) for value in values]


def test_queries(case):
    actual = score_queries(case.distances, *case.sides)
    averages = [plain.average_precision(ranking) for ranking in case.rankings]
    assert averages == known(actual.average_precision.tolist()) and None in averages
    assert actual.first_match.tolist() == [plain.first_match(ranking) for ranking in case.rankings]
    # Their mean is the mAP of the evaluation.
    whole = rank_distances(case.distance, *case.ids, *case.keys)
    assert np.nanmean(actual.average_precision) == pytest.approx(whole.mAP, abs=1e-12)


def test_cameras(case):
    every, mean = analysis.camera_matrix(case.distances, *case.sides)
    cameras, matrix = plain.camera_matrix(case.distance.tolist(), *case.lists)
    assert every == cameras == [0, 1, 2, 3, 4]
    assert matrix == [known(row) for row in mean.tolist()]
    assert np.isfinite(mean).any()
    if case.keys is case.cameras:
        assert np.isnan(mean.diagonal()).all()


def test_identities(case):
    averages = score_queries(case.distances, *case.sides).average_precision
    actual = analysis.score_identities(averages, case.ids[0].numpy())
    expected = plain.identity_scores(
        [plain.average_precision(ranking) for ranking in case.rankings], case.lists[0][0]
    )
    rows = [(pytest.approx(score.mAP), score.identity, score.queries) for score in actual]
    assert rows == expected
    assert [score.mAP for score in actual] == sorted(score.mAP for score in actual)


def test_worst_queries(case):
    averages = score_queries(case.distances, *case.sides).average_precision
    expected = sorted((value, query) for query, value in enumerate(averages) if not np.isnan(value))
    for count in (1, 5, len(averages) + 1):
        assert analysis.worst_queries(averages, count).tolist() == [
            query for _, query in expected[:count]
        ]


def test_nearest(case):
    chosen = torch.randperm(30, generator=generator(3))[:12].numpy()
    actual = analysis.nearest_samples(case.distances, *case.sides, chosen, 10)
    for row, query in enumerate(chosen.tolist()):
        assert [(hit.distance, hit.is_match, hit.sample) for hit in actual[row]] == case.rankings[
            query
        ][:10]


def test_distances(case):
    actual = analysis.distance_histogram(case.distances, *case.sides, bins=13)
    largest = max(distance for ranking in case.rankings for distance, *_ in ranking)
    assert actual.edges[0] == 0 and actual.edges[-1] == largest and len(actual.edges) == 14
    # Inside the bins, where no rounding of an edge decides.
    inside = Case(2)
    inside.distance = inside.distance + 1 / 77
    actual = analysis.distance_histogram(inside.distances, *inside.sides, bins=13)
    expected = plain.histogram(
        inside.distance.tolist(), inside.lists[0], inside.lists[2], actual.edges.tolist()
    )
    assert [actual.positives.tolist(), actual.negatives.tolist()] == expected


def test_distances_that_are_all_zero(case):
    case.distance = torch.zeros_like(case.distance)
    actual = analysis.distance_histogram(case.distances, *case.sides)
    assert (
        actual.edges[-1] == 1
        and actual.positives[0] == actual.positives.sum() > 0
        and actual.negatives[1:].sum() == 0
    )
