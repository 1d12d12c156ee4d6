"""CUDA graphs: kernels that are recorded once and then launched together, where launching one by one takes longer than they run
(PyTorch's notes on CUDA semantics)."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, cast

import torch

WARM_UPS = 3  # calls before the recording, in which libraries choose their kernels and compiled code is made

Result = TypeVar("Result")


class Tensors(Protocol):
    """Several tensors, such as a batch."""

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "Tensors": ...

    def tensors(self) -> list[torch.Tensor]: ...


Inputs = TypeVar("Inputs", bound=Tensors)


class Recording(Generic[Inputs, Result]):
    """Runs a function of tensors on a GPU, whose shapes never change: `WARM_UPS` times as it is, then as the CUDA graph that
    the next call records.

    The function must launch the same kernels on the same memory at every call, beside what it allocates itself, and read
    nothing back on the CPU; its Python runs no more once it is recorded. A result is overwritten by the next call.
    """

    def __init__(self) -> None:
        self.calls = 0

    def run(self, work: Callable[[Inputs], Result], inputs: Inputs) -> Result:
        """The result of `work` for `inputs`."""
        self.calls += 1
        if self.calls <= WARM_UPS:
            return work(inputs)
        if self.calls == WARM_UPS + 1:
            self.inputs = cast(Inputs, inputs.map(torch.clone))
            self._record(work)
        else:
            for recorded, tensor in zip(self.inputs.tensors(), inputs.tensors(), strict=True):
                recorded.copy_(tensor)
        self.graph.replay()
        return self.result

    def _record(self, work: Callable[[Inputs], Result]) -> None:
        device = self.inputs.tensors()[0].device
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            stream = torch.cuda.Stream()
            # Other threads may pin the memory of images meanwhile.
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.result = work(self.inputs)
