"""CUDA graphs: kernels that are recorded once and then launched together, where launching one by one takes longer than they run
(PyTorch's notes on CUDA semantics)."""

from collections.abc import Callable
from typing import Any

import torch
from yacs.config import CfgNode

WARM_UPS = 3  # calls before the recording, in which libraries choose their kernels and compiled code is made


def can_record(cfg: CfgNode, device: torch.device) -> bool:
    """Whether what a model of `cfg` computes can be recorded on a device: a score of the user's may read from a GPU, so that
    MODEL.COMPILE has to ask for it."""
    is_theirs = cfg.MODEL.SLIM_BLOCKS and ":" in cfg.MODEL.SLIM_SCORE
    return device.type == "cuda" and (cfg.MODEL.COMPILE or not is_theirs)


class Recording:
    """`work`, a function of batches of one shape on a GPU: `WARM_UPS` times as it is, then as the CUDA graph that the next call
    records.

    The function must launch the same kernels on the same memory at every call, beside what it allocates itself, and read
    nothing back on the CPU; its Python runs no more once it is recorded. A result is overwritten by the next call.
    """

    def __init__(self, work: Callable[[Any], Any]):
        self.work, self.calls = work, 0

    def __call__(self, batch: Any) -> Any:
        """The result of `work` for `batch`."""
        self.calls += 1
        if self.calls <= WARM_UPS:
            return self.work(batch)
        if self.calls == WARM_UPS + 1:
            self.batch = batch.map(torch.clone)
            self._record()
        else:
            for recorded, tensor in zip(self.batch.tensors(), batch.tensors(), strict=True):
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
