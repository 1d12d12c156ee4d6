"""Limits of the processor in the benchmark: what is counted, and the rows."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.benchmarks.limits import counted, limit_rows

FLOAT = 4  # bytes


def totals(work):
    flops, size, seconds = (sum(column) for column in zip(*counted(work), strict=True))
    assert seconds > 0
    return flops, size


def sizes(work):
    return [one[:2] for one in counted(work)]


def test_products_are_counted_with_what_they_read_and_write():
    one, other = torch.randn(2, 3), torch.randn(3, 5)
    assert sizes(lambda: (one @ other).exp()) == [(2 * 2 * 3 * 5, FLOAT * (6 + 15 + 10)), (0, FLOAT * (10 + 10))]


def test_views_move_nothing_and_operations_in_place_do():
    tensor = torch.zeros(8, 4)
    assert counted(lambda: tensor[2:].T.view(4, 6)) == []
    assert sizes(lambda: tensor[0].add_(1)) == [(0, FLOAT * (4 + 4))]


def test_the_backward_pass_is_counted():
    layer, images = nn.Linear(3, 5, bias=False), torch.randn(7, 3)
    flops, size = totals(lambda: layer(images).sum().backward())
    assert flops == 2 * (2 * 7 * 3 * 5)  # forward, and the gradient of the weight
    assert size > totals(lambda: layer(images))[1]


def test_fused_attention_has_the_products_of_the_plain_one():
    query, key, value = torch.randn(3, 2, 4, 9, 8)
    plain = totals(lambda: (query @ key.transpose(-2, -1)).softmax(-1) @ value)
    assert totals(lambda: F.scaled_dot_product_attention(query, key, value))[0] == plain[0] == 2 * 2 * (2 * 4 * 9 * 9 * 8)


@pytest.mark.slow
def test_every_row_has_its_limit_beside_the_time():
    rows = limit_rows(quick=True)
    limits = [row for row in rows if row.reference is not None]
    assert len(rows) > len(limits) > 8
    assert all(row.ratio == row.reference / row.ours and row.unit == "s" for row in limits)
