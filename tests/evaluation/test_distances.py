"""Distances of features: with a common offset, and of triplets that lack modalities, against slow versions in float64."""

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import squared_distances as exact_distances
from numeric import assert_close, generator
from ranking_cases import (
    ALL_SOURCES,
    PRESENT,
    WIDTH,
    assert_same,
    comparison,
    distance_lengths,
    draw_sides,
    labels_of,
    rank_distances,
    scaled_errors,
    shuffled,
    split_parts,
)

from demo_sdtps.config import MODALITIES
from demo_sdtps.evaluation import distances
from demo_sdtps.evaluation.distances import (
    Comparison,
    measure_distances,
    set_distances,
    squared_distances,
)
from demo_sdtps.evaluation.metrics import score_distances
from tests.reference import cross_modal as plain

OFFSET = 1000
GAP = 1e-5
"""Of two distances from a query, relative to their mean: what roundings do not decide on, where the offset is none."""


@pytest.mark.parametrize("is_normalised", [False, True], ids=["as they are", "normalised"])
@pytest.mark.parametrize("is_kept", [True, False], ids=["a matrix", "blocks of queries"])
def test_a_common_offset_changes_no_rank(is_kept, is_normalised, monkeypatch):
    if not is_kept:
        monkeypatch.setattr(distances, "KEPT_ELEMENTS", 0)
        monkeypatch.setattr(distances, "BLOCK_ELEMENTS", 7 * 40)
    draws, gaps = generator(1), np.zeros(1)
    ids, cams = (torch.randint(kinds, (60,), generator=draws).split([20, 40]) for kinds in (8, 3))
    while gaps.min() < GAP:
        centres = torch.randn(8, 6, generator=draws)[torch.cat(ids)]
        features = OFFSET + centres + torch.randn(60, 6, generator=draws)
        features = F.normalize(features) if is_normalised else features
        exact = exact_distances(features)
        gaps = np.diff(np.sort(exact.numpy(), axis=1)[:, 1:], axis=1) / exact.mean().item()
    sides = [(side, np.ones((len(side), 3), bool)) for side in features.split([20, 40])]
    measured, exact = measure_distances(Comparison(), *sides), exact[:20, 20:]
    blocks = [block for _, block in measured.blocks()]
    assert len(blocks) == (1 if is_kept else 3)
    assert ((torch.cat(blocks) - exact).abs() / exact.mean()).max() < GAP / 2
    expected = rank_distances(exact, *ids, *cams)
    actual = score_distances(measured, *labels_of(ids, cams))
    assert_same(actual, expected.cmc.tolist(), expected.mAP, expected.mINP)


@pytest.mark.parametrize("offset", [0, 2.0**20, 1e6], ids=str)
def test_an_offset_of_doubles_that_float32_would_round_changes_no_distance(offset):
    sides = torch.randn(60, 8, generator=generator(4)).double().split([20, 40])
    # of 2 ** -23, which the doubles hold beside the offset
    query, gallery = ((side * 2**23).round() / 2**23 for side in sides)
    actual = squared_distances(query + offset, gallery + offset)
    exact = (query[:, None] - gallery).square().sum(2)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, squared_distances(query, gallery))
    assert ((actual - exact).abs() / exact.mean()).max() < GAP / 2


@pytest.mark.parametrize("sources", ALL_SOURCES.values(), ids=ALL_SOURCES)
@pytest.mark.parametrize("how", ["all", "shared"])
def test_distances_of_two_sets_against_the_slow_version(how, sources):
    """In all 49 cells, of which 12 share nothing; what is not used may be anything, as a missing modality's columns."""
    draws, undefined = generator(len(sources)), 0
    for one, other in product(PRESENT.values(), repeat=2):
        sets = 3 * [one], 4 * [other]
        query, gallery = draw_sides(draws, sources, *sets)
        actual = set_distances(comparison(sources, how), query, gallery)
        parts = split_parts(query[0]), split_parts(gallery[0])
        expected = plain.distances(*parts, sources, *sets, how)
        if np.isinf(expected[0][0]):
            undefined += 1
            assert actual.isinf().all() and not one & other
            continue
        assert_close(actual, expected, *distance_lengths(sources), scale=4)
        if how == "all":
            continue
        for place, names in enumerate(sources):
            for (side, _), present in ((query, one), (gallery, other)):
                if not present.issuperset(names):
                    side.unflatten(1, (-1, WIDTH))[:, place].normal_(generator=draws)
        assert torch.equal(set_distances(comparison(sources, how), query, gallery), actual)
    assert undefined == (12 if how == "shared" else 0)


@pytest.mark.parametrize("fewest", [1, 7])
@pytest.mark.parametrize("how", ["all", "shared"])
@pytest.mark.parametrize("kept", [0, 1000])
def test_distances_of_triplets_that_have_other_sets_each(monkeypatch, how, fewest, kept):
    """All of them in one matrix, infinite where nothing is shared, and standardised; of all queries, and in blocks."""
    monkeypatch.setattr(distances, "FEWEST", fewest)
    monkeypatch.setattr(distances, "KEPT_ELEMENTS", kept)
    monkeypatch.setattr(distances, "BLOCK_ELEMENTS", 4 * 19)
    draws, sources = generator(20), ALL_SOURCES["13C"]
    # 13 triplets have RGB, 12 NI, 12 TI, 6 all
    sets = [shuffled(draws, 3), [*shuffled(draws, 2), {"RGB"}, *4 * [set(MODALITIES)]]]
    query, gallery = draw_sides(draws, sources, *sets)
    arguments = split_parts(query[0]), split_parts(gallery[0]), sources, *sets, how
    lengths = distance_lengths(sources)
    actual = set_distances(comparison(sources, how), query, gallery)
    assert_close(actual, plain.distances(*arguments), *lengths, scale=4)
    expected = np.array(plain.scaled(*arguments, fewest))
    scale = scaled_errors(expected, plain.scales(*arguments, fewest))
    measured = measure_distances(comparison(sources, how), query, gallery)
    rows, blocks = zip(*measured.blocks(), strict=True)
    assert [block.start for block in rows] == [0, 4, 8, 12, 16, 20]
    assert_close(torch.cat(blocks), expected, *lengths, 50, scale=scale)
    some = np.array([20, 0, 5, 5])
    assert_close(measured.rows(some), expected[some], *lengths, 50, scale=scale)
