"""Copies from a GPU that do not make the CPU wait (runtime/transfer.py); tests/project/test_gpu.py asks a real GPU."""

import torch

from demo_sdtps.runtime.transfer import on_cpu


def test_tensors_come_to_the_cpu_one_batch_late():
    """So that the work on the next batch has begun; and they are what was given."""
    order, given = (
        [],
        [[torch.full((2,), float(number)), torch.tensor(number)] for number in range(3)],
    )

    def batches():
        for number, tensors in enumerate(given):
            order.append(f"begun {number}")
            yield tensors

    results = []
    for tensors in on_cpu(batches()):
        order.append(f"here {len(results)}")
        results.append(tensors)
    assert order == ["begun 0", "begun 1", "here 0", "begun 2", "here 1", "here 2"]
    assert all(
        torch.equal(one, other)
        for tensors, batch in zip(results, given, strict=True)
        for one, other in zip(tensors, batch, strict=True)
    )
    assert list(on_cpu([])) == []
