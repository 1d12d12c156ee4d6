"""Copies from a GPU that do not make the CPU wait, and what is recorded as CUDA graphs; test_gpu.py asks a real GPU."""

import pytest
import torch
from tiny import tiny_cfg

from demo_sdtps.runtime.gpu import can_record, on_cpu

SLIM = ("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]")
THEIRS = ("MODEL.SLIM_SCORE", "studies.baselines:EViT")
COMPILED = ("MODEL.COMPILE", "True")


@pytest.mark.parametrize(
    ("device", "opts", "expected"),
    [
        ("cuda", SLIM, True),
        ("cuda", THEIRS, True),  # of no stage
        ("cuda", (*SLIM, *THEIRS), False),
        ("cuda", (*SLIM, *THEIRS, *COMPILED), True),
        ("cpu", (*SLIM, *COMPILED), False),
    ],
)
def test_what_is_recorded(device, opts, expected):
    assert can_record(tiny_cfg(*opts), torch.device(device)) is expected


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
