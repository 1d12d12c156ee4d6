"""tools/slim_curve.py: its settings, its numbers and its files."""

import json
import shlex

import pytest
from commands import BASELINE, cli_args_for, scores_of, weights_file
from PIL import Image

from demo_sdtps.commands import slim_curve
from demo_sdtps.commands import test as test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.reports.slim_curve import AS_TRAINED, settings


@pytest.fixture
def words(tiny_root, tmp_path):
    words = cli_args_for(tiny_root, config=BASELINE)
    return [
        *words,
        "--weight",
        weights_file(tmp_path / "weights.pth", load_cfg(BASELINE, words[2:])),
    ]


def test_settings_follow_the_depth():
    """Two blocks and shares by default; else every block with every share."""
    assert settings(12, None, None) == [
        ([4], [0.65]),
        ([4], [0.5]),
        ([2, 6], [0.6, 0.6]),
        ([2, 6], [0.45, 0.45]),
        ([0, 4], [0.4, 0.5]),
    ]
    assert settings(6, [[2], [1, 3]], [0.5]) == [([2], [0.5]), ([1, 3], [0.5, 0.5])]


@pytest.mark.slow
def test_the_numbers_are_those_of_test_net(words, command, tmp_path):
    code, stdout, _ = command(
        slim_curve.main,
        *words,
        *shlex.split("--scores distinctness --blocks 2 1,3 --keep 0.5"),
        "--output",
        tmp_path / "curve.png",
        "--json",
        tmp_path / "curve.json",
    )
    assert code == 0
    dense, *points = json.loads((tmp_path / "curve.json").read_text())["points"]
    assert [(point["score"], point["blocks"], point["keep"]) for point in points] == [
        ("distinctness", [2], [0.5]),
        ("distinctness", [1, 3], [0.5, 0.5]),
    ]
    assert (dense["score"], dense["operations"]) == ("", 1.0)
    # Half of the patches in the last four of six blocks, and an extra token; scoring costs little.
    assert (
        points[1]["operations"] < points[0]["operations"]
        and abs(points[0]["operations"] - 4 / 6) < 0.05
    )
    assert (
        command(
            test_net.main,
            *words,
            *shlex.split(
                "MODEL.SLIM_BLOCKS [1,3] MODEL.SLIM_KEEP [0.5,0.5] MODEL.SLIM_SCORE distinctness"
            ),
            "--json",
            tmp_path / "evaluation.json",
        )[0]
        == 0
    )
    record = scores_of(tmp_path / "evaluation.json")["3"]
    assert (points[1]["mAP"], points[1]["rank1"]) == (record["mAP"], record["Rank-1"])
    rows = [
        line.split() for line in stdout.splitlines() if line.startswith(("dense", "distinctness"))
    ]
    assert [row[-2] for row in rows] == [f"{100 * point['mAP']:.1f}" for point in (dense, *points)]
    with Image.open(tmp_path / "curve.png") as image:
        assert min(image.size) > 300


def test_a_checkpoint_s_own_setting(command, tiny_root, tmp_path, caplog):
    """First, once, and with the numbers of its evaluation; what is left out of the weights is said once."""
    slim = tuple(
        shlex.split("MODEL.SLIM_BLOCKS [1] MODEL.SLIM_KEEP [0.5] MODEL.SLIM_SCORE self_supervised")
    )
    words = [*cli_args_for(tiny_root, config=BASELINE), *slim]
    words += ["--weight", weights_file(tmp_path / "weights.pth", load_cfg(BASELINE, words[2:]))]
    code, stdout, _ = command(
        slim_curve.main,
        *words,
        *shlex.split("--scores self_supervised saliency --blocks 1 --keep 0.5"),
        "--output",
        tmp_path / "curve.svg",
        "--json",
        tmp_path / "curve.json",
    )
    assert code == 0
    points = json.loads((tmp_path / "curve.json").read_text())["points"]
    assert [(point["score"], point["own"]) for point in points] == [
        ("", False),
        ("self_supervised", True),
        ("saliency", False),
    ]
    assert [line.split()[0] for line in stdout.splitlines() if line.endswith(AS_TRAINED)] == [
        "self_supervised"
    ]
    assert sum("is left out" in message for message in caplog.messages) == 1
    assert command(test_net.main, *words, "--json", tmp_path / "evaluation.json")[0] == 0
    assert scores_of(tmp_path / "evaluation.json")["3"]["mAP"] == points[1]["mAP"]
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    # with the default scores
    assert command(slim_curve.main, *words, "--blocks", "1", "--keep", "0.5")[0] == 0
