"""Ranks without sorting the gallery: large galleries, ties, pieces and types, against whole matrices and plain loops."""

import pytest
import torch
from numeric import generator
from ranking_cases import assert_same, random_case, rank_distances

from tests.reference import demo_ranking, ranking


def by_whole_matrices(distance, ids, places, max_rank=50):
    return demo_ranking.evaluate_distances(
        distance.numpy(), *(side.numpy() for side in (*ids, *places)), max_rank=max_rank
    )


@pytest.mark.parametrize(
    ("seed", "gallery", "identities"),
    [(30, 3000, 400), (31, 3000, 20), (32, 40_000, 1500), (33, 40_000, 90)],
)
@pytest.mark.parametrize("nearness", [0.0, 3.0])
@pytest.mark.parametrize("scenes", [False, True])
def test_large_galleries_against_whole_matrices(seed, gallery, identities, nearness, scenes):
    """More than one piece, few and many matches, and matches that are nearer than others; by camera and by scene."""
    case = random_case(seed, 25, gallery, identities, dim=2)
    noise = torch.rand(25, gallery, generator=generator(seed), dtype=torch.double)
    distance = noise - nearness * (case[2][:, None] == case[3])
    places = (case[4] % 2, case[5] % 2) if scenes else case[4:]
    assert_same(
        rank_distances(distance, *case[2:4], *places),
        *by_whole_matrices(distance, case[2:4], places),
    )


@pytest.mark.parametrize("seed", range(40, 44))
@pytest.mark.parametrize("levels", [1, 3, 50])
def test_matches_rank_after_others_as_far(seed, levels):
    """Many distances are equal, whatever the order of the gallery."""
    case = random_case(seed, identities=5)
    distance = torch.randint(levels, (40, 120), generator=generator(seed)).float()
    actual = rank_distances(distance, *case[2:])
    assert_same(
        actual,
        *ranking.evaluate_distances(distance.tolist(), *(side.tolist() for side in case[2:])),
    )
    order = torch.randperm(120, generator=generator(seed))
    again = rank_distances(distance[:, order], case[2], case[3][order], case[4], case[5][order])
    assert again.mAP == actual.mAP
    assert torch.equal(again.cmc, actual.cmc)
