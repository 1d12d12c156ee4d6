"""demo-sdtps slim-curve: its settings, its numbers and its files."""

import json

import pytest
from commands import BASELINE, cli_args_for, read_scores, weights_file
from PIL import Image

from demo_sdtps.commands import evaluate
from demo_sdtps.commands import test as test_net
from demo_sdtps.config import load_cfg


@pytest.mark.slow
def test_the_numbers_are_those_of_test_net(success, tiny_root, tmp_path, caplog):
    """Of a checkpoint with a score that is left out."""
    slim = "MODEL.SLIM_BLOCKS=[1] MODEL.SLIM_KEEP=[0.5] MODEL.SLIM_SCORE=learned:Learned"
    words = [*cli_args_for(tiny_root, config=BASELINE), *slim.split()]
    words += ["--weight", weights_file(tmp_path / "weights.pth", load_cfg(BASELINE, words[2:]))]
    options = ("--scores", "saliency", "--blocks", "2", "1,3", "--keep", "0.5")
    outputs = ("--output", tmp_path / "curve.png", "--json", tmp_path / "curve.json")
    stdout = success(evaluate.slim_curve, *words, *options, *outputs)
    dense, *points = json.loads((tmp_path / "curve.json").read_text())["points"]
    settings = [(point["score"], point["blocks"], point["keep"]) for point in points]
    assert settings == [("saliency", [2], 0.5), ("saliency", [1, 3], 0.5)]
    assert (dense["score"], dense["operations"]) == ("", 1.0)
    # Half of the patches in the last four of six blocks, and an extra token; scoring costs little.
    assert points[1]["operations"] < points[0]["operations"]
    assert abs(points[0]["operations"] - 4 / 6) < 0.05
    assert "is left out" in caplog.text
    same = "MODEL.SLIM_BLOCKS=[1,3] MODEL.SLIM_KEEP=[0.5,0.5] MODEL.SLIM_SCORE=saliency"
    success(test_net.main, *words, *same.split(), "--json", tmp_path / "x.json")
    record = read_scores(tmp_path / "x.json")["3"]
    assert (points[1]["mAP"], points[1]["rank1"]) == (record["mAP"], record["Rank-1"])
    rows = [line.split() for line in stdout.splitlines() if line.startswith(("dense", "saliency"))]
    assert [row[-2] for row in rows] == [f"{100 * point['mAP']:.1f}" for point in (dense, *points)]
    with Image.open(tmp_path / "curve.png") as image:
        assert min(image.size) > 300
