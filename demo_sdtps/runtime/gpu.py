"""Copies between CPU and GPU for which the CPU does not wait, and CUDA graphs, recorded kernels (docs/performance.md)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from yacs.config import CfgNode

WARM_UPS = 3  # calls before the recording, in which libraries choose their kernels and compiled code is made


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


def can_record(cfg: CfgNode, device: torch.device) -> bool:
    """Whether a model of `cfg` can be recorded on a device; a user's score, which may read from a GPU, by MODEL.COMPILE."""
    is_theirs = cfg.MODEL.SLIM_BLOCKS and ":" in cfg.MODEL.SLIM_SCORE
    return device.type == "cuda" and (cfg.MODEL.COMPILE or not is_theirs)


class Recording:
    """`work`, a function of batches of one shape on a GPU: `WARM_UPS` times as it is, then as the CUDA graph that the next call
    records. The function must launch the same kernels on the same memory at every call, beside what it allocates itself, and
    read nothing back on the CPU; its Python runs no more once it is recorded. A result is overwritten by the next call."""

    def __init__(self, work: Callable[[Any], Any]):
        self.work, self.calls = work, 0

    def __call__(self, batch: Any) -> Any:
        """The result of `work` for `batch`."""
        self.calls += 1
        if self.calls <= WARM_UPS:
            return self.work(batch)
        if self.calls == WARM_UPS + 1:
            self.batch = tree_map(torch.clone, batch)
            self._record()
        else:
            for recorded, tensor in zip(*map(tree_leaves, (self.batch, batch)), strict=True):
                recorded.copy_(tensor)
        self.graph.replay()
        return self.result

    def _record(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.batch.labels.device):
            stream = torch.cuda.Stream()
            # Other threads may pin the memory of images meanwhile.
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.result = self.work(self.batch)
