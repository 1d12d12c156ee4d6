"""What a drawn rank list says: the return pattern and the distances that it is ranked by."""

import re

import pytest
from commands import CONFIG, cli_args_for, squared_distances, weights_file
from numeric import tolerance

from demo_sdtps.commands import evaluate
from demo_sdtps.config import load_cfg
from demo_sdtps.evaluation import protocol
from demo_sdtps.evaluation.distances import k_reciprocal
from demo_sdtps.reports import figures


@pytest.mark.parametrize(
    ("words", "pattern", "text"),
    [
        (["TEST.FEAT_NORM", "no", "TEST.RETURN_PATTERN", "2"], 2, "squared Euclidean distance"),
        (["--return_pattern=1", "TEST.RE_RANKING", "yes"], 1, "k-reciprocal distance"),
    ],
    ids=["by key", "by flag, re-ranked"],
)
def test_title_and_distances(success, monkeypatch, tiny_root, tmp_path, words, pattern, text):
    """Those of query 16 of 32, to what the protocol leaves, smallest first."""
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    weights = weights_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]))
    flags = ("--weight", weights, "--queries", "1", "--output", tmp_path / "ranks.png")
    success(evaluate.draw_ranks, *cli_args_for(tiny_root, *flags, *words))
    query, *gallery = [axis.get_title() for axis in drawn[0].axes]
    cell = re.compile(r"(\d+) [✓✗] d = (\S+)\nid \d+, camera \d")
    places, distances = zip(*(cell.fullmatch(each).groups() for each in gallery), strict=True)
    assert [*map(int, places)] == list(range(1, 11))
    title = drawn[0].get_suptitle().splitlines()[1]
    assert title.startswith(f"return pattern {pattern} ") and f"d: {text}" in title

    keys = [word for word in words if not word.startswith("--")]
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, "TEST.WEIGHT", weights, *keys)[2:])
    model, splits = protocol.load_model_and_data(cfg)
    data = protocol.make_test_data(cfg, **splits)
    features = protocol.normalise(
        cfg, protocol.extract_features(cfg, model, data.loader)[0][pattern]
    )
    is_reranked = cfg.TEST.RE_RANKING == "yes"
    matrix = k_reciprocal(features, features) if is_reranked else squared_distances(features)
    one = splits["query"][16]
    assert f"id {one.identity}, camera {one.camera + 1}" in query
    expected = sorted(
        matrix[16, place].item()
        for place, sample in enumerate(splits["gallery"])
        if (sample.identity, sample.camera) != (one.identity, one.camera)
    )[:10]
    half_a_digit = 5e-3  # of the three that are printed
    # three sums of D terms, as large as twice the squared lengths
    largest = 2 * float(features.double().square().sum(1).max())
    allowed = tolerance(*3 * features.shape[1:], 2) * largest
    for actual, distance in zip(map(float, distances), expected, strict=True):
        assert abs(actual - distance) <= half_a_digit * distance + allowed
