"""The benchmark of the data: both of its sides load the same images."""
import numpy as np
import pytest

from demo_sdtps.benchmarks import data as benchmark_data
from demo_sdtps.benchmarks.plain import loading as plain
from demo_sdtps.datasets.images import decode_triplet


@pytest.mark.parametrize("size", [benchmark_data.FITTING, benchmark_data.OTHER])
def test_both_sides_decode_the_same_pixels(tmp_path, size):
    benchmark_data.draw(tmp_path, *size, identities=1)
    _, samples = benchmark_data.training_samples(tmp_path)
    assert len(samples) == 4
    for sample in samples:
        for path, ours in zip(sample.paths, decode_triplet(sample.paths), strict=True):
            assert ours.shape == (3, *size)
            assert np.array_equal(ours.permute(1, 2, 0).numpy(), np.asarray(plain.decode(path)))
