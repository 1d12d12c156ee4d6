"""tools/slim_curve.py: its settings, its numbers, its files, and what it refuses."""
import json

import pytest
from commands import BASELINE, ONE_LINE, cli_args_for, scores_of, weights_file
from PIL import Image

from demo_sdtps import test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.tools import slim_curve


@pytest.fixture
def words(tiny_root, tmp_path):
    words = cli_args_for(tiny_root, config=BASELINE)
    return [*words, "--weight", weights_file(tmp_path / "weights.pth", load_cfg(BASELINE, words[2:]))]


@pytest.mark.parametrize("depth, expected", [
    (6, [([2], [0.65]), ([2], [0.5]), ([1, 3], [0.6, 0.6]), ([1, 3], [0.45, 0.45])]),
    (12, [([4], [0.65]), ([4], [0.5]), ([2, 6], [0.6, 0.6]), ([2, 6], [0.45, 0.45])]),
    (1, [([0], [0.65]), ([0], [0.5]), ([0], [0.6]), ([0], [0.45])])])
def test_settings_follow_the_depth(depth, expected):
    assert slim_curve.settings(depth, None, None) == expected


def test_settings_are_every_block_with_every_share():
    assert slim_curve.settings(6, [[2], [1, 3]], [0.5]) == [([2], [0.5]), ([1, 3], [0.5, 0.5])]
    assert slim_curve.settings(6, None, [0.5]) == [([2], [0.5]), ([1, 3], [0.5, 0.5])]
    assert slim_curve.settings(6, [[5]], None) == [([5], [0.65]), ([5], [0.5])]


@pytest.mark.slow
def test_the_numbers_are_those_of_test_net(words, command, tmp_path):
    code, stdout, _ = command(slim_curve.main, *words, "--scores", "distinctness", "--blocks", "2", "1,3",
                              "--keep", "0.5",
                              "--output", tmp_path / "curve.png", "--json", tmp_path / "curve.json")
    assert code == 0
    dense, *points = json.loads((tmp_path / "curve.json").read_text())["points"]
    assert [(point["score"], point["blocks"], point["keep"]) for point in points] == [
        ("distinctness", [2], [0.5]), ("distinctness", [1, 3], [0.5, 0.5])]
    assert (dense["score"], dense["operations"]) == ("", 1.0)
    # Half of the patches in the last four of six blocks, and an extra token; scoring costs little.
    assert points[1]["operations"] < points[0]["operations"] and abs(points[0]["operations"] - 4 / 6) < 0.05
    assert command(test_net.main, *words, "MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.5,0.5]",
                   "MODEL.SLIM_SCORE", "distinctness", "--json", tmp_path / "found.json")[0] == 0
    record = scores_of(tmp_path / "found.json")["3"]
    assert (points[1]["mAP"], points[1]["rank1"]) == (record["mAP"], record["Rank-1"])
    rows = [line.split() for line in stdout.splitlines() if line.startswith(("dense", "distinctness"))]
    assert [row[-2] for row in rows] == [f"{100 * point['mAP']:.1f}" for point in (dense, *points)]
    with Image.open(tmp_path / "curve.png") as image:
        assert min(image.size) > 300


@pytest.mark.parametrize("more, said", [
    (["--scores", "distinct"], "--scores is 'distinct', but it must be"), (["--scores", "mask"], "reads the images' own masks"),
    (["TEST.MISS", "all"], "a curve is that of one case"), (["--scores", "sdtps"], "hold none of it"),
    (["--blocks", "9"], "has 6 blocks"), (["--keep", "0.001"], "is less than one")])
def test_a_mistake_is_one_sentence(words, command, more, said):
    code, _, stderr = command(slim_curve.main, *words, *more)
    assert code == 2 and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1 and said in stderr


@pytest.mark.parametrize("more", [["--blocks", "3,1"], ["--blocks", "x"], ["--keep", "2"]])
def test_a_value_that_is_no_setting_is_refused(words, command, more):
    code, _, stderr = command(slim_curve.main, *words, *more)
    assert code == 2 and f"argument {more[0]}" in stderr
