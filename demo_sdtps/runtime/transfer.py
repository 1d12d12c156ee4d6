"""Copies between the CPU and a GPU that do not make the CPU wait for the GPU's work (docs/performance.md, "On a GPU")."""

from collections.abc import Iterable, Iterator, Sequence

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`. Only from pinned memory is a copy to a GPU asynchronous."""
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class CPUCopy:
    """The copy of a tensor on the CPU, without gradient; from a GPU it is ready when the GPU has done the work before it."""

    def __init__(self, tensor: torch.Tensor):
        self.copied = tensor.detach().to("cpu", non_blocking=True)  # from a GPU into pinned memory
        self.event: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> torch.Tensor:
        """The copy, once it is ready."""
        if self.event:
            self.event.synchronize()
        return self.copied


def on_cpu(batches: Iterable[Sequence[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """The tensors of each batch on the CPU, each batch after the work on the next has begun, so that a GPU is never idle."""
    previous: list[CPUCopy] = []
    for tensors in batches:
        copies = [CPUCopy(tensor) for tensor in tensors]
        if previous:
            yield [copy.wait() for copy in previous]
        previous = copies
    if previous:
        yield [copy.wait() for copy in previous]
