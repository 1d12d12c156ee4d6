"""Copies from a GPU that do not make the CPU wait (runtime/gpu.py); tests/project/test_gpu.py asks a real GPU."""

import torch

from demo_sdtps.runtime.gpu import on_cpu


def test_tensors_come_to_the_cpu_one_batch_late():
    """So that the work on the next batch has begun; and they are what was given."""
    order = []

    def batches():
        for number in range(3):
            order.append(f"begun {number}")
            yield torch.full((2,), float(number)), torch.tensor(number)

    for number, (values, count) in enumerate(on_cpu(batches())):
        order.append(f"here {number}")
        assert values.tolist() == [number, number] and count == number
    assert order == ["begun 0", "begun 1", "here 0", "begun 2", "here 1", "here 2"]
    assert list(on_cpu([])) == []
