"""demo-sdtps slim-curve: its settings, its numbers and its files."""

import json

import pytest
from commands import BASELINE, cli_args_for, read_scores, weights_file
from PIL import Image

from demo_sdtps.commands import evaluate
from demo_sdtps.commands import test as test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.reports.slim_curve import AS_TRAINED


@pytest.fixture
def words(tiny_root, tmp_path):
    words = cli_args_for(tiny_root, config=BASELINE)
    weights = weights_file(tmp_path / "weights.pth", load_cfg(BASELINE, words[2:]))
    return [*words, "--weight", weights]


@pytest.fixture
def curve(command, tmp_path):
    """Call the command, which draws into a file and writes its points → the points, and what it prints."""

    def call(words, options, image):
        outputs = ("--output", tmp_path / image, "--json", tmp_path / "curve.json")
        code, stdout, stderr = command(evaluate.slim_curve, *words, *options.split(), *outputs)
        assert code == 0, stderr
        return json.loads((tmp_path / "curve.json").read_text())["points"], stdout

    return call


@pytest.fixture
def score(command, tmp_path):
    """The record of both features that test_net.py writes for these words."""

    def call(*words):
        path = tmp_path / "evaluation.json"
        assert command(test_net.main, *words, "--json", path)[0] == 0
        return read_scores(path)["3"]

    return call


@pytest.mark.slow
def test_the_numbers_are_those_of_test_net(words, curve, score, tmp_path):
    options = "--scores saliency --blocks 2 1,3 --keep 0.5"
    (dense, *points), stdout = curve(words, options, "curve.png")
    assert [(point["score"], point["blocks"], point["keep"]) for point in points] == [
        ("saliency", [2], [0.5]),
        ("saliency", [1, 3], [0.5, 0.5]),
    ]
    assert (dense["score"], dense["operations"]) == ("", 1.0)
    # Half of the patches in the last four of six blocks, and an extra token; scoring costs little.
    assert points[1]["operations"] < points[0]["operations"]
    assert abs(points[0]["operations"] - 4 / 6) < 0.05
    slim = "MODEL.SLIM_BLOCKS=[1,3] MODEL.SLIM_KEEP=[0.5,0.5] MODEL.SLIM_SCORE=saliency"
    record = score(*words, *slim.split())
    assert (points[1]["mAP"], points[1]["rank1"]) == (record["mAP"], record["Rank-1"])
    rows = [line.split() for line in stdout.splitlines() if line.startswith(("dense", "saliency"))]
    assert [row[-2] for row in rows] == [f"{100 * point['mAP']:.1f}" for point in (dense, *points)]
    with Image.open(tmp_path / "curve.png") as image:
        assert min(image.size) > 300


@pytest.mark.slow
def test_a_checkpoint_s_own_setting(curve, score, command, tiny_root, tmp_path, caplog):
    """First, once, and with the numbers of its evaluation; what is left out of the weights is said once."""
    slim = "MODEL.SLIM_BLOCKS=[1] MODEL.SLIM_KEEP=[0.5] MODEL.SLIM_SCORE=self_supervised"
    words = [*cli_args_for(tiny_root, config=BASELINE), *slim.split()]
    words += ["--weight", weights_file(tmp_path / "weights.pth", load_cfg(BASELINE, words[2:]))]
    options = "--scores self_supervised saliency --blocks 1 --keep 0.5"
    points, stdout = curve(words, options, "curve.svg")
    assert [(point["score"], point["own"]) for point in points] == [
        ("", False),
        ("self_supervised", True),
        ("saliency", False),
    ]
    assert [line.split()[0] for line in stdout.splitlines() if line.endswith(AS_TRAINED)] == [
        "self_supervised"
    ]
    assert sum("is left out" in message for message in caplog.messages) == 1
    assert score(*words)["mAP"] == points[1]["mAP"]
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    # with the default scores
    assert command(evaluate.slim_curve, *words, "--blocks", "1", "--keep", "0.5")[0] == 0
