"""CUDA graphs: kernels that are recorded once and then launched together, where launching one by one takes longer than they run
(PyTorch's notes on CUDA semantics)."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch

WARM_UPS = 3  # calls before the recording, in which libraries choose their kernels and compiled code is made

Result = TypeVar("Result")


class Recording(Generic[Result]):
    """Runs a function of tensors on a GPU by name, whose shapes never change: `WARM_UPS` times as it is, then as the CUDA graph
    that the next call records.

    The function must launch the same kernels on the same memory at every call, beside what it allocates itself, and read
    nothing back on the CPU; its Python runs no more once it is recorded. A result is overwritten by the next call.
    """

    def __init__(self) -> None:
        self.calls = 0

    def run(
        self,
        work: Callable[[Mapping[str, torch.Tensor]], Result],
        tensors: Mapping[str, torch.Tensor],
    ) -> Result:
        """The result of `work` for `tensors`."""
        self.calls += 1
        if self.calls <= WARM_UPS:
            return work(tensors)
        if self.calls == WARM_UPS + 1:
            self.inputs = {name: tensor.clone() for name, tensor in tensors.items()}
            self._record(work)
        else:
            for name, tensor in tensors.items():
                self.inputs[name].copy_(tensor)
        self.graph.replay()
        return self.result

    def _record(self, work: Callable[[Mapping[str, torch.Tensor]], Result]) -> None:
        device = next(iter(self.inputs.values())).device
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            stream = torch.cuda.Stream()
            # Other threads may pin the memory of images meanwhile.
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.result = work(self.inputs)
