"""What features have in common changes no rank: a large offset, against distances in float64, wherever the gallery is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import CONFIG, cli_args_for, squared_distances
from feature_stores import make_gallery
from numeric import assert_close, generator
from ranking_cases import assert_same, rank_distances

from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.evaluation import distances
from demo_sdtps.evaluation.distances import (
    Comparison,
    matrix_distances,
    measure_distances,
    measure_in_memory,
)
from demo_sdtps.evaluation.metrics import evaluate_ranking, match_ranks, score_distances
from demo_sdtps.evaluation.protocol import make_test_data, normalise, rank_features
from demo_sdtps.evaluation.reranking import k_reciprocal
from tests.reference import ranking, reranking

OFFSET = 1000
GAP = 1e-5
"""Of two distances from a query, relative to their mean: what roundings do not decide on, where the offset is none."""


def offset_features(draws, count, identities, is_normalised, dim=6):
    """Features around the centres of identities, with a common offset, and their distances in float64; without near ties."""
    gaps = np.zeros(1)
    while gaps.min() < GAP:
        centres = torch.randn(int(identities.max()) + 1, dim, generator=draws)
        features = OFFSET + centres[identities] + torch.randn(count, dim, generator=draws)
        features = F.normalize(features) if is_normalised else features
        exact = squared_distances(features)
        gaps = np.diff(np.sort(exact.numpy(), axis=1)[:, 1:], axis=1) / exact.mean().item()
    return features, exact


def in_memory(query, gallery, monkeypatch):
    return measure_in_memory(Comparison(), query, gallery)


def in_parts(query, gallery, monkeypatch):
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", 0)
    monkeypatch.setattr(distances, "TILE_ELEMENTS", 11 * len(query[0]))
    return in_memory(query, gallery, monkeypatch)


def on_disk(query, gallery, monkeypatch):
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", 0)
    monkeypatch.setattr(distances, "TILE_ELEMENTS", 11 * len(query[0]))
    place = make_gallery(gallery[0].numpy(), size=8)
    return measure_distances(Comparison(), query, place.present, place.take)


@pytest.mark.parametrize("is_normalised", [False, True], ids=["as they are", "normalised"])
@pytest.mark.parametrize("measure", [in_memory, in_parts, on_disk])
def test_a_common_offset_changes_no_rank(measure, is_normalised, monkeypatch):
    draws = generator(1)
    ids, cams = (torch.randint(kinds, (60,), generator=draws) for kinds in (8, 3))
    features, exact = offset_features(draws, 60, ids, is_normalised)
    sides = [(side, np.ones((len(side), 3), bool)) for side in features.split([20, 40])]
    labels = [(each[:20], each[20:]) for each in (ids, cams)]
    measured, exact = measure(*sides, monkeypatch), exact[:20, 20:]
    actual = measured.values
    assert ((actual - exact).abs() / exact.mean()).max() < GAP / 2
    for one, other in zip(
        match_ranks(measured, *labels)[:2],
        match_ranks(matrix_distances(exact), *labels)[:2],
        strict=True,
    ):
        assert np.array_equal(one, other)
    expected = ranking.evaluate_distances(
        exact.tolist(), *(side.tolist() for pair in labels for side in pair)
    )
    assert_same(score_distances(measured, *labels), *expected)


@pytest.mark.parametrize("offset", [0, 2.0**20, 1e6], ids=str)
def test_an_offset_of_doubles_that_float32_would_round_changes_no_distance(offset):
    sides = torch.randn(60, 8, generator=generator(4)).double().split([20, 40])
    # of 2 ** -23, which the doubles hold beside the offset
    query, gallery = ((side * 2**23).round() / 2**23 for side in sides)
    expected = distances.squared_distances(query, gallery)
    actual = distances.squared_distances(query + offset, gallery + offset)
    exact = (query[:, None] - gallery).square().sum(2)
    assert actual.dtype == torch.float32 and torch.equal(actual, expected)
    assert ((actual - exact).abs() / exact.mean()).max() < GAP / 2


@pytest.mark.parametrize("value", ["yes", "no"])
def test_an_evaluation_of_features_with_an_offset(tiny_root, value):
    """By TEST.FEAT_NORM; the same as the documented function has it."""
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, "TEST.FEAT_NORM", value)[2:])
    data = make_test_data(cfg, **read_splits(cfg, ("query", "gallery")))
    identities = torch.tensor([sample.identity for sample in data.samples])
    kinds = identities.unique(return_inverse=True)[1]
    features, _ = offset_features(generator(2), len(data.samples), kinds, value == "yes")
    exact = squared_distances(normalise(cfg, features))
    sides = data.query, data.gallery
    labels = [data.labels(name, side) for name in ("identity", "camera") for side in sides]
    expected = rank_distances(exact[data.query][:, data.gallery], *labels)
    assert 0.2 < expected.mAP < 0.9
    for actual in (
        rank_features(cfg, features, data, 1),
        evaluate_ranking(*(normalise(cfg, features)[side] for side in sides), *labels),
    ):
        assert (actual.mAP, actual.mINP) == (expected.mAP, expected.mINP)
        assert torch.equal(actual.cmc, expected.cmc) and actual.tpr == expected.tpr


def test_re_ranking_of_features_with_an_offset():
    draws = generator(3)
    ids = torch.randint(8, (60,), generator=draws)
    features, _ = offset_features(draws, 60, ids, is_normalised=True)
    query, gallery = features.split([20, 40])
    expected = reranking.k_reciprocal(*(side.double().tolist() for side in (query, gallery)), 8, 4)
    # of a relative distance, up to 1, its weight, the sums of weights and minima, and x / (2 - x)
    assert_close(k_reciprocal(query, gallery, 8, 4), expected, 6, 6, 60, 60, 60, 8, scale=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_re_ranking_of_features_of_nearly_one_direction(offset, dtype):
    """Which differ less than float32 tells once they are normalised: the neighbours are those of normalisation in float64."""
    draws = generator(4)
    centres = torch.randn(8, 6, generator=draws)[torch.randint(8, (60,), generator=draws)]
    features = (centres + torch.randn(60, 6, generator=draws)).to(dtype) + offset
    query, gallery = features.split([20, 40])
    expected = reranking.k_reciprocal(*(side.double().tolist() for side in (query, gallery)), 8, 4)
    assert_close(k_reciprocal(query, gallery, 8, 4), expected, 6, 6, 60, 60, 60, 8, scale=20)
