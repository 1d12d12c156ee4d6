"""The benchmark's rows of slimming: what they compare and say, never how long it takes."""
import pytest
import torch
from tiny import tiny_cfg

from demo_sdtps.benchmarks.slimming import Setting, pairs, rows_of


def test_rows_of_slimming():
    settings = [Setting(score, (1, 3), (0.5, 0.5)) for score in ("distinctness", "attention", "supervised")]
    cfg = tiny_cfg("MODEL.USE_SDTPS", False, "MODEL.HDM", False, "MODEL.ATM", False)
    rows = list(rows_of(cfg, settings, quick=True, halves=[None, torch.bfloat16]))
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
