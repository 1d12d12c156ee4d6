"""What the hooks of a model remember: the forward under way in each thread, and streams (streams.py) by the inputs of blocks.

By these a block that the backward pass computes again (gradient checkpointing) drops the same patches.
"""

import threading

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from demo_sdtps.modeling.slimming.streams import ForwardPass, Stream
from demo_sdtps.runtime.errors import UserError


class Thread(threading.local):
    """What belongs to a thread, as replicas of nn.DataParallel run in threads."""

    now: ForwardPass | None = None  # the forward under way
    stream: Stream | None = None  # of the block that runs
    # The stream that the backward pass computes again, and where: tower and graph.
    recomputed: tuple[tuple[int, int] | None, Stream | None] = None, None


class State:
    """What a `Slim` remembers; a copy of the model begins anew."""

    def __init__(self) -> None:
        self.thread = Thread()
        self.losses: list[torch.Tensor] = []  # of the last forward
        self.records: dict[tuple[int, int, StorageWeakRef, int], Stream] = {}

    def __reduce__(self) -> tuple:
        return State, ()

    def add(self, tower: int, block: int, inputs: torch.Tensor, stream: Stream) -> None:
        """Remember the stream whose tokens, or images, are the input of a block while that input exists."""
        self.records[_key(tower, block, inputs)] = stream

    def get(self, tower: int, block: int, inputs: torch.Tensor) -> Stream | None:
        return self.records.get(_key(tower, block, inputs))

    def forget(self) -> None:
        """Drop the records of inputs that are gone."""
        for key in [key for key in list(self.records) if key[2].expired()]:
            self.records.pop(key, None)


def _key(tower: int, block: int, inputs: torch.Tensor) -> tuple[int, int, StorageWeakRef, int]:
    return tower, block, StorageWeakRef(inputs.untyped_storage()), int(inputs.storage_offset())


def is_backward() -> bool:
    """Whether autograd runs in this thread, which computes blocks again under checkpointing.

    Reentrant checkpointing detaches the inputs of what it computes again, and so loses the gradients of dropped patches.
    """
    if torch._C._current_graph_task_id() == -1:
        return False
    node = torch._C._current_autograd_node()
    if node is not None and "CheckpointFunction" in node.name():
        raise UserError(
            "A slimmed model is computed again by reentrant checkpointing; use checkpointing with use_reentrant=False."
        )
    return True
