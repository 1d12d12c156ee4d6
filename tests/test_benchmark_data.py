"""The benchmark of the data: its rows, and that both of its sides load the same images. Never its times."""
import math

import numpy as np
import pytest

from demo_sdtps.benchmarks import data as benchmark_data
from demo_sdtps.benchmarks.plain import loading as plain
from demo_sdtps.datasets.images import decode_triplet


def test_quick_rows():
    rows = benchmark_data.data_rows(quick=True)
    assert [row.what for row in rows] == ["decoding and augmentation of a triplet", "the same from 300×150 pixels, resized",
                                          "training's wait for data in the demo"]
    assert all(math.isfinite(row.ours) and row.ours >= 0 for row in rows)
    for row in rows[:2]:
        assert row.unit == "s" and row.ratio == row.reference / row.ours
    assert rows[0].target == "≥ 2×" and rows[0].met == (rows[0].ratio >= 2)
    assert rows[2].unit == "%" and rows[2].ours < 100 and rows[2].target == "≤ 1 %"


@pytest.mark.parametrize("size", [benchmark_data.FITTING, benchmark_data.OTHER])
def test_both_sides_decode_the_same_pixels(tmp_path, size):
    benchmark_data.draw(tmp_path, *size, identities=1)
    _, samples = benchmark_data.training_samples(tmp_path)
    assert len(samples) == 4
    for sample in samples:
        for path, ours in zip(sample.paths, decode_triplet(sample.paths), strict=True):
            assert ours.shape == (3, *size)
            assert np.array_equal(ours.permute(1, 2, 0).numpy(), np.asarray(plain.decode(path)))
