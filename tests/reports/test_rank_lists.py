"""What a drawn rank list says: the return pattern and the distances that it is ranked by."""

import re
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from commands import (
    CONFIG,
    QUERIES,
    cli_args_for,
    distance_rounding,
    squared_distances,
    weights_file,
)

from demo_sdtps.commands import draw
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.evaluation.extraction import extract_features, load_model_and_data
from demo_sdtps.evaluation.protocol import make_test_data, normalise
from demo_sdtps.evaluation.reranking import k_reciprocal
from demo_sdtps.reports import evaluation


@pytest.fixture
def draw_list(command, monkeypatch, tiny_root, tmp_path):
    """Draw one query's list, with these words after the command's: → (title, the gallery's (place, distance), cfg)."""
    figures, save = [], evaluation.figures.save
    monkeypatch.setattr(
        evaluation.figures,
        "save",
        lambda figure, path: figures.append(figure) or save(figure, path),
    )
    weights = weights_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]))

    def call(*words):
        picture = ("--weight", weights, "--queries", "1", "--output", tmp_path / "ranks.png")
        code, _, stderr = command(draw.ranks, *cli_args_for(tiny_root, *picture, *words))
        assert code == 0, stderr
        query, *gallery = [axis.get_title() for axis in figures[-1].axes]
        expected = r"query(\nfirst hit at rank \d\d)?\nid (\d+), camera (\d)"
        *_, identity, number = re.fullmatch(expected, query).groups()
        file = sorted(tiny_root.glob("RGBNT201/test/RGB/*"))[16]
        assert file.name.startswith(f"{identity:>06}_cam{number}_")
        assert (tmp_path / "ranks.png").stat().st_size > 0
        cell = re.compile(r"(\d+) [✓✗] d = (\S+)\nid \d+, camera \d")
        cells = [cell.fullmatch(title).groups() for title in gallery]
        assert [int(place) for place, _ in cells] == list(range(1, 11))
        keys = [word for word in words if not word.startswith("--")]
        cfg = load_cfg(CONFIG, cli_args_for(tiny_root, "TEST.WEIGHT", weights, *keys)[2:])
        return figures[-1].get_suptitle(), [float(distance) for _, distance in cells], cfg

    return call


def nearest_distances(cfg, pattern):
    """The ten smallest distances of query 16 of 32, which is drawn, to those that the protocol leaves, and what roundings
    change of them."""
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    features = normalise(cfg, extract_features(cfg, model, data.loader)[0][pattern])
    distance = squared_distances(features)
    if cfg.TEST.RE_RANKING == "yes":
        distance = k_reciprocal(features, features)
    query = splits["query"][16]
    return sorted(
        distance[16, place].item()
        for place, sample in enumerate(splits["gallery"])
        if (sample.identity, sample.camera) != (query.identity, query.camera)
    )[:10], distance_rounding(features)


@pytest.mark.parametrize(
    ("words", "pattern", "text"),
    [
        (
            "TEST.RETURN_PATTERN=1",
            "1 (original)",
            "squared Euclidean distance of L2-normalised features",
        ),
        pytest.param(
            "--return_pattern=2 TEST.RETURN_PATTERN=1 TEST.FEAT_NORM=no",
            "2 (enhanced)",
            "squared Euclidean distance of features, features not normalised",
            marks=pytest.mark.slow,
        ),
        (
            "--return_pattern=1 TEST.RE_RANKING=yes",
            "1 (original)",
            "k-reciprocal distance, re-ranked",
        ),
    ],
    ids=["by key", "by flag", "re-ranked"],
)
def test_title_and_distances(draw_list, words, pattern, text):
    title, distances, cfg = draw_list(*words.split())
    assert title.splitlines()[1] == f"return pattern {pattern}; d: {text}"
    nearest, allowed = nearest_distances(cfg, int(pattern[0]))
    half_a_digit = 5e-3  # of the three that are printed
    for actual, distance in zip(distances, nearest, strict=True):
        assert abs(actual - distance) <= half_a_digit * distance + allowed
    assert distances == sorted(distances) and distances[0] < distances[-1]


@pytest.fixture
def ranking_case(tiny_root, tmp_path):
    """(cfg, features, test data) of random weights."""
    path = weights_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]))
    cfg = load_cfg(CONFIG, [*cli_args_for(tiny_root)[2:], "TEST.WEIGHT", str(path)])
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    return cfg, extract_features(cfg, model, data.loader)[0][3], data


def first_hits(cfg, features, data, nearer=0.0):
    """The rank of the first hit of every query, by sorting, with all hits nearer by so many times what roundings change; misses
    at its distance come first."""
    features = normalise(cfg, features)
    distance, nearer = squared_distances(features), nearer * distance_rounding(features)
    actual = []
    for query in data.query.tolist():
        query_sample = data.samples[query]
        gallery = [data.samples[index] for index in data.gallery.tolist()]
        is_match = [sample.identity == query_sample.identity for sample in gallery]
        others = zip(distance[query, data.gallery].tolist(), is_match, gallery, strict=True)
        order = sorted(
            (value - nearer * is_match, is_match)
            for value, is_match, sample in others
            if not is_match or sample.camera != query_sample.camera
        )
        actual.append(1 + [hit for _, hit in order].index(True))
    return actual


def test_failures_are_the_queries_without_a_hit_at_rank_1_worst_first(ranking_case):
    cfg, features, data = ranking_case
    first = data.samples[data.query[0]]
    match = next(
        index
        for index in data.gallery.tolist()
        if data.samples[index].identity == first.identity
        and data.samples[index].camera != first.camera
    )
    features[match] = features[data.query[0]]  # a hit at rank 1 for certain
    # whatever is rounded
    best, worst, everyone = (
        first_hits(*ranking_case, 2),
        first_hits(*ranking_case, -2),
        range(QUERIES),
    )
    failed, possible = (
        [number for number in everyone if ranks[number] > 1] for ranks in (best, worst)
    )
    actual = evaluation.failures(*ranking_case)
    assert {*failed} <= {*actual} <= {*possible} and 0 < len(actual) == len({*actual}) < QUERIES
    assert all(worst[first] >= best[second] for first, second in pairwise(actual))
    perfect = F.one_hot(torch.tensor([one.identity for one in data.samples])).float()
    with pytest.raises(UserError, match="--failures finds none"):
        evaluation.failures(cfg, perfect, data)
