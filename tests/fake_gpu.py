"""A GPU that is not there: its tensors have a shape and a device but no values (torch's FakeTensor).

What needs a value on the CPU, for which a real GPU would have to be waited for, fails.
"""
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cuda", 0)
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class WaitsError(Exception):
    """The CPU would wait for the GPU, or for a copy to it."""


class FakeGPU(TorchDispatchMode):
    """Inside, operations on the GPU's tensors have tensors of it as results, and those of the CPU alone are real.

    FakeTensor itself raises where the result, or its shape, depends on values; with `is_strict`, `WaitsError` is raised for a
    copy between CPU and GPU that is not asynchronous and for operations on tensors of both.
    """

    is_strict = False

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        goal = torch.device(kwargs.get("device") or "cpu").type
        if goal == "cpu" and not any(isinstance(tensor, FakeTensor) for tensor in given):
            with unset_fake_temporarily():
                return operator(*args, **kwargs)
        result = operator(*args, **kwargs)
        if not self.is_strict:
            return result
        both = {leaf.device.type for leaf in (*given, *tree_leaves(result)) if isinstance(leaf, torch.Tensor) and leaf.ndim}
        if operator in COPIES:
            is_asynchronous = kwargs.get("non_blocking") or args[2:] == (True,)
            both |= {tensor.device.type for tensor in (*given, result)}
        else:
            is_asynchronous = False
        if len(both) > 1 and not is_asynchronous:
            raise WaitsError(f"{operator} of tensors on the CPU and the GPU")
        return result


class Pending:
    """A CUDA event that the GPU has not reached."""

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass


def backward(loss: torch.Tensor) -> None:
    """What torch's backward pass leaves of a model on the fake GPU; the pass itself needs a real one."""
    for parameter in Gradients.of:
        parameter.grad = torch.zeros_like(parameter)


class Gradients:
    of: tuple[nn.Parameter, ...] = ()


@contextmanager
def fake_gpu(*modules: nn.Module) -> Iterator[FakeGPU]:
    """Inside, `modules` are on the fake GPU, and torch behaves as if it were there."""
    with ExitStack() as inside:
        for owner, name, stand_in in ((torch.cuda, "Event", Pending), (torch.cuda, "current_stream", lambda device: None),
                                      (torch.Tensor, "is_pinned", lambda tensor: True), (torch.Tensor, "backward", backward)):
            inside.enter_context(mock.patch.object(owner, name, stand_in))
        inside.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        for module in modules:
            module.to_empty(device=GPU)
        yield inside.enter_context(FakeGPU())
