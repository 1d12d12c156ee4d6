"""ONNX operators in place of those of torch that torch's exporter does not know."""

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18 as op

aten = torch.ops.aten


def sort_stable(values, *, stable=True, dim=-1, descending=False):
    """Of equal values TopK has the one with the lower index first."""
    length = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
    return op.TopK(values, length, axis=dim, largest=int(descending), sorted=1)


def kthvalue(values, k, dim=-1, keepdim=False):
    """The last of the k smallest."""
    smallest = op.TopK(values, op.Constant(value_ints=[k]), axis=dim, largest=0, sorted=1)
    last = op.Constant(value_ints=[k - 1]) if keepdim else op.Constant(value_int=k - 1)
    return tuple(op.Gather(tensor, last, axis=dim) for tensor in smallest)


def cdist(first, second, p, compute_mode):
    """Euclidean distances: (…, n, C), (…, m, C) → (…, n, m)."""
    rows, columns = op.Constant(value_ints=[-2]), op.Constant(value_ints=[-3])
    steps = op.Sub(op.Unsqueeze(first, rows), op.Unsqueeze(second, columns))
    return op.ReduceL2(steps, op.Constant(value_ints=[-1]), keepdims=0)


def searchsorted(boundaries, values, *, out_int32=False, right=False, side=None, sorter=None):
    """The number of boundaries (…, n) below each of the values (…, m), int64."""
    first, last = op.Constant(value_ints=[-2]), op.Constant(value_ints=[-1])
    below = op.Less(op.Unsqueeze(boundaries, first), op.Unsqueeze(values, last))
    return op.ReduceSum(op.Cast(below, to=7), op.Constant(value_ints=[-1]), keepdims=0)  # 7: int64


OPERATORS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.sort.stable: sort_stable,
    aten.kthvalue.default: kthvalue,
    aten._cdist_forward.default: cdist,
    aten.searchsorted.Tensor: searchsorted,
}
"""For `custom_translation_table` of torch.onnx.export."""
