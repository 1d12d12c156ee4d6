"""Any modality against any: distances between sets of modalities, and test_net.py --cross_modal (docs/method.md)."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import CONFIG, FUSION, read_cases
from numeric import assert_close, generator, tolerance
from ranking_cases import (
    ALL_SOURCES,
    OWN,
    PRESENT,
    WIDTH,
    comparison,
    draw_sides,
    present_in,
    shuffled,
    split_parts,
)
from tiny import SHALLOW, random_images, tiny_model

from demo_sdtps.commands import test as test_net
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.evaluation.distances import k_reciprocal, rerank
from demo_sdtps.evaluation.protocol import (
    CASES,
    extract_cases,
    extract_patterns,
    load_model_and_data,
    make_test_data,
    modality_sets,
    rank_sets,
)
from demo_sdtps.modeling.modalities import SUBSETS
from tests.reference import cross_modal as plain
from tests.reference import ranking
from tests.reference import reranking as plain_reranking

pytestmark = pytest.mark.usefixtures("shallow")
SETS = modality_sets(MODALITIES)


def test_the_sets_are_named_by_what_is_present():
    assert {name: set(MODALITIES) - CASES[case] for name, case in SETS.items()} == PRESENT
    assert list(SETS) == list(PRESENT)


def test_re_ranking_is_by_these_distances():
    """By the slow version, of a matrix of distances; what has none is as far as can be."""
    draws, sources = generator(21), ALL_SOURCES["7C"]
    sets = [2 * [*PRESENT.values()], 4 * [*PRESENT.values()]]
    present, gaps = [*sets[0], *sets[1]], np.zeros(1)
    while gaps.min() < 1e-5:  # roundings decide on the nearest
        query, gallery = draw_sides(draws, sources, *sets)
        samples = split_parts(query[0]) + split_parts(gallery[0])
        values = plain.distances(samples, samples, sources, present, present, "shared")
        distances = np.array(values).clip(0, 4)
        ordered = np.sort(distances, axis=1)
        gaps = np.diff(ordered, axis=1)[ordered[:, 1:] < 4]
    actual = rerank(comparison(sources, "shared"), query, gallery)
    expected = plain_reranking.k_reciprocal_by(distances.tolist(), len(query[0]))
    sums, farthest = len(sources) * WIDTH, float(distances.max(axis=1).min())
    lengths = (*4 * (sums,), *3 * (len(samples),), 8)
    assert_close(actual, expected, *lengths, scale=4 * max(1, 2 / farthest))
    whole = [(side, np.ones_like(each)) for side, each in (query, gallery)]
    actual = rerank(comparison(sources, "shared"), *whole)
    assert torch.equal(actual, k_reciprocal(query[0], gallery[0]))


@pytest.mark.parametrize(
    "opts",
    [
        "MODEL.USE_SDTPS False",
        f"MODEL.USE_SDTPS False MODEL.DIRECT 0 {' '.join(FUSION)}",
        "MODEL.SDTPS_BETA 0.0",
        "MODEL.SDTPS_BETA 0.0 MODEL.HDM True",
    ],
    ids=["baseline", "HDM, ATMoE", "SDTPS", "SDTPS, HDM"],
)
@pytest.mark.parametrize("changed", MODALITIES)
@torch.no_grad()
def test_the_columns_of_a_modality(changed, opts):
    """Another image of a modality changes the columns that are made from it alone: of ATMoE's also the lengths of the others,
    each head's by its weight, but not their directions. With a beta of 0 no modality guides another in SDTPS."""
    model = tiny_model(*opts.split()).eval()
    heads, view = (4, partial(F.normalize, dim=-1)) if model.atmoe else (1, torch.clone)
    images, cameras = random_images(1)
    others = images | {changed: random_images(2)[0][changed]}
    before, after = (
        extract_patterns(model, each, cameras, [frozenset()])[0] for each in (images, others)
    )
    for pattern, sources in model.layout.sources.items():
        parts = [
            actual[pattern].unflatten(1, (len(sources), heads, -1)) for actual in (before, after)
        ]
        for place, names in enumerate(sources):
            one, two = (view(columns[:, place]) for columns in parts)
            is_same = (one - two).abs().max() <= tolerance(*SHALLOW, *SHALLOW) * max(
                1, float(one.abs().max())
            )
            assert is_same == (changed not in names), (pattern, names)


@pytest.mark.parametrize(
    "how, pattern", [("shared", 2), pytest.param("all", 3, marks=pytest.mark.slow)]
)
def test_matrices_of_all_sets(how, pattern, loaded, fused_words, success, tmp_path):
    """By all columns, and of complete triplets, as TEST.MISS all has them, to the last bit; others by the slow versions."""
    words = [*fused_words, "TEST.RETURN_PATTERN", pattern, "TEST.CROSS_MODAL_DISTANCE", how]
    stdout = success(test_net.main, *words, "--cross_modal", "--json", tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_text())
    assert (content["distance"], content["return_pattern"]) == (how, pattern)
    actual = content["cross_modal"]

    more = ("TEST.MISS", "all", "--json", tmp_path / "all.json")
    success(test_net.main, *words, *more)
    table = read_cases(tmp_path / "all.json")
    for measure, rows in actual.items():
        for name, case in SETS.items():
            is_equal = rows[name][name] == table[case][str(pattern)][measure]
            assert is_equal or (how != "all" and name != "RNT"), (measure, name)

    cfg, model, data = loaded
    features = extract_cases(cfg, model, data, CASES)
    sources = [*(OWN * (pattern != 2)), *OWN, *SUBSETS.values()]
    for query_set, gallery_set in (("R", "NT"), ("RT", "T"), ("RNT", "RN")):
        query, gallery = (
            features[SETS[name]][pattern][side].double().unflatten(1, (len(sources), -1)).tolist()
            for name, side in ((query_set, data.query), (gallery_set, data.gallery))
        )
        sets = (
            len(side) * [PRESENT[name]]
            for side, name in ((query, query_set), (gallery, gallery_set))
        )
        distances = plain.distances(query, gallery, sources, *sets, how)
        expected = (
            None
            if np.isinf(distances[0][0])
            else ranking.evaluate_distances(distances, *list_labels(data))[1]
        )
        # one exchange, of 6
        assert actual["mAP"][query_set][gallery_set] == (
            expected and pytest.approx(expected, abs=1 / len(query) / 12)
        )

    tables = stdout.split("\n\n")[1:]
    for text, (measure, rows) in zip(tables, actual.items(), strict=True):
        lines = [line.split() for line in text.splitlines()]
        assert lines[0] == [measure, *SETS]
        assert [line[1:] for line in lines[1:8]] == [
            ["-" if value is None else f"{100 * value:.1f}" for value in row.values()]
            for row in rows.values()
        ]


@pytest.fixture(scope="module")
def loaded(fused_words):
    """Configuration, model, and query and gallery of the test data."""
    cfg = load_cfg(CONFIG, fused_words[2:])
    model, _ = load_model_and_data(cfg)
    return cfg, model, make_test_data(cfg, **read_splits(cfg, ("query", "gallery")))


def list_labels(data):
    query, gallery = data.labels
    sides = (query.identity, gallery.identity, query.key, gallery.key)
    return [side.tolist() for side in sides]


def test_a_triplet_that_lacks_images_is_compared_by_those_that_it_has(loaded):
    """In every cell, by the set's modalities; without any it comes last."""
    cfg, model, data = loaded
    sets = shuffled(generator(5), 5)[: len(data.samples)]
    data = replace(data, present=present_in(sets))
    by_case = extract_cases(cfg, model, data, CASES)
    case_of = {frozenset(MODALITIES) - missing: case for case, missing in CASES.items()}

    def features_in(modalities):
        """Of each sample by what it has of these modalities, and that."""
        both = [each & modalities for each in sets]
        rows = [
            by_case[case_of.get(frozenset(each), "nothing")][3][row]
            for row, each in enumerate(both)
        ]
        return torch.stack(rows), both

    in_case = {
        case: {3: features_in(set(MODALITIES) - missing)[0]} for case, missing in CASES.items()
    }
    actual = rank_sets(cfg, model, in_case, data)["mAP"]
    sources = [*OWN, *OWN, *SUBSETS.values()]
    for one, other in (("RNT", "RNT"), ("RT", "RNT"), ("N", "RT"), ("T", "T"), ("RN", "NT")):
        sides = []
        for name, rows in ((one, data.query), (other, data.gallery)):
            features, both = features_in(PRESENT[name])
            parts = features[rows].double().unflatten(1, (len(sources), -1)).tolist()
            sides.append((parts, [both[row] for row in rows]))
        (query, query_sets), (gallery, gallery_sets) = sides
        distances = plain.distances(query, gallery, sources, query_sets, gallery_sets, "shared")
        expected = ranking.evaluate_distances(distances, *list_labels(data))[1]
        if np.isinf(distances).all():
            assert actual[one][other] is None
        else:
            assert actual[one][other] == pytest.approx(expected, abs=1 / len(data.query) / 12)


@pytest.mark.parametrize(
    "more, message",
    [
        (("--cross_modal", "TEST.RE_RANKING", "yes"), "without re-ranking"),
        (("--cross_modal", "TEST.MISS", "rn"), "TEST.MISS"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together(more, message, fused_words, command):
    code, _, stderr = command(test_net.main, *fused_words, *more)
    assert code == 2 and message in stderr and stderr.count("\n") == 1
