"""The benchmark's rows of slimming: what they compare and say, never how long it takes."""
import json
import statistics

import pytest
import torch
from commands import ONE_LINE, ROOT
from PIL import Image
from tiny import tiny_cfg

from demo_sdtps.benchmarks import accuracy_time
from demo_sdtps.benchmarks.slimming import Setting, pairs, rows_of


def test_rows_of_slimming():
    settings = [Setting(score, (1, 3), (0.5, 0.5)) for score in ("distinctness", "attention", "supervised")]
    cfg = tiny_cfg("MODEL.USE_SDTPS", False, "MODEL.HDM", False, "MODEL.ATM", False)
    rows = list(rows_of(cfg, settings, quick=True, precisions=[torch.float32, torch.bfloat16]))
    times, saved = rows[::2], rows[1::2]
    assert len(times) == len(saved) == 2 * 2 * len(settings)
    for row, setting in zip(times, 4 * settings, strict=True):
        assert setting.name in row.what and "% of the operations" in row.what
        assert row.ratio == row.reference / row.ours > 0
    assert [("inference" in row.what, "float32" in row.what) for row in times[::len(settings)]] == [
        (True, True), (False, True), (True, False), (False, False)]


def test_time_saved_over_operations_saved():
    """Three quarters of the operations and 70 % of the time are saved by the first, half and 20 % by the second."""
    first, share, second, smaller = pairs("a step", {"dense": 2.0, "a": 0.6, "b": 1.6}, {"dense": 8.0, "a": 2.0, "b": 4.0})
    assert first.what == "a step: a (25 % of the operations)" and first.ratio == pytest.approx(2 / 0.6)
    assert (first.target, first.met, second.target, second.met) == ("≥ 2×", True, "", None)
    assert share.ours == pytest.approx(0.7 / 0.75) and share.met and share.target == "≥ 0.9"
    assert smaller.ours == pytest.approx(0.2 / 0.5) and not smaller.met


def test_accuracy_against_time_of_a_study(tmp_path, command, monkeypatch):
    """The operations and mAP are the study's; the times are measured in the same run, a variant that reads masks included."""
    monkeypatch.chdir(ROOT)
    result = json.loads((ROOT / "docs" / "results" / "slimming.json").read_text())
    result["variants"] = [result["variants"][number] for number in (0, 1, 7)]
    assert result["variants"][2]["name"].startswith("true mask")
    (tmp_path / "study.json").write_text(json.dumps(result))
    words = (tmp_path / "study.json", "--batch", "2", "--rounds", "1", "--output", tmp_path / "x.png", "--json",
             tmp_path / "x.json")
    code, stdout, stderr = command(accuracy_time.main, *words)
    assert code == 0, stderr
    seconds = json.loads((tmp_path / "x.json").read_text())["seconds"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in stdout.splitlines() if line.startswith("|")][2:]
    for row, variant in zip(rows, result["variants"], strict=True):
        last = [100 * records[-1]["patterns"]["3"]["mAP"] for records in variant["records"].values()]
        assert row[0] == variant["name"] and float(row[1]) == pytest.approx(statistics.mean(last), abs=0.051)
        assert float(row[2]) == pytest.approx(variant["gmacs"] / result["variants"][0]["gmacs"], abs=0.0051)
        for shown, taken in zip(row[3:], seconds.values(), strict=True):
            assert float(shown) == pytest.approx(taken[row[0]] / taken["dense"], abs=0.0051)
    with Image.open(tmp_path / "x.png") as image:
        assert min(image.size) > 150
    (tmp_path / "study.json").write_text("{}")
    code, _, stderr = command(accuracy_time.main, *words, "--overwrite")
    assert code == 2 and stderr.startswith(ONE_LINE) and "no study.json" in stderr
