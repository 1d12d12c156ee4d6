"""Operators of torch that the model runs, which on a GPU are launches of kernels."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.operators import BUDGETS, DENSE, Counter, count_rows


@pytest.mark.parametrize(
    "score",
    [name if name == DENSE else pytest.param(name, marks=pytest.mark.slow) for name in BUDGETS],
)
def test_no_more_operators_than_budgeted_and_none_that_waits_for_the_device(score):
    inference, moved, step = count_rows(score)
    assert inference.met and step.met, (inference.ours, step.ours)
    assert inference.ours < step.ours
    # of the dense model 44 GB
    assert moved.ours > (20 if score == DENSE else 8)


def test_operators_are_counted_with_the_bytes_that_they_read_and_write():
    with FakeTensorMode(), Counter() as counter:
        matrix = torch.ones(4, 8)  # 128 bytes written
        matrix.t() @ matrix.view(4, 8)  # reads 256, writes 256
        torch.empty(100)
    assert (counter.operators, counter.bytes) == (2, 640)
