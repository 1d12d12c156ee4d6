"""What a drawn rank list says: the return pattern and the distances that it is ranked by."""

import re

import pytest
from commands import CONFIG, cli_args_for, distance_rounding, squared_distances, weights_file

from demo_sdtps.commands import evaluate
from demo_sdtps.config import load_cfg
from demo_sdtps.evaluation.extraction import extract_features, load_model_and_data
from demo_sdtps.evaluation.protocol import make_test_data, normalise
from demo_sdtps.evaluation.reranking import k_reciprocal
from demo_sdtps.reports import figures


@pytest.fixture
def draw_list(success, monkeypatch, tiny_root, tmp_path):
    """Draw one query's list, with these words after the command's: → (title, the gallery's (place, distance), cfg)."""
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    weights = weights_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]))

    def call(*words):
        picture = ("--weight", weights, "--queries", "1", "--output", tmp_path / "ranks.png")
        success(evaluate.draw_ranks, *cli_args_for(tiny_root, *picture, *words))
        query, *gallery = [axis.get_title() for axis in drawn[-1].axes]
        identity, number = re.fullmatch(
            r"query(?:\nfirst hit at rank \d\d)?\nid (\d+), camera (\d)", query
        ).groups()
        file = sorted(tiny_root.glob("RGBNT201/test/RGB/*"))[16]
        assert file.name.startswith(f"{identity:>06}_cam{number}_")
        cell = re.compile(r"(\d+) [✓✗] d = (\S+)\nid \d+, camera \d")
        cells = [cell.fullmatch(title).groups() for title in gallery]
        assert [int(place) for place, _ in cells] == list(range(1, 11))
        keys = [word for word in words if not word.startswith("--")]
        cfg = load_cfg(CONFIG, cli_args_for(tiny_root, "TEST.WEIGHT", weights, *keys)[2:])
        return drawn[-1].get_suptitle(), [float(distance) for _, distance in cells], cfg

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
            "1 original",
            "squared Euclidean distance of L2-normalised features",
        ),
        pytest.param(
            "--return_pattern=2 TEST.RETURN_PATTERN=1 TEST.FEAT_NORM=no",
            "2 enhanced",
            "squared Euclidean distance of features, features not normalised",
            marks=pytest.mark.slow,
        ),
        (
            "--return_pattern=1 TEST.RE_RANKING=yes",
            "1 original",
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
