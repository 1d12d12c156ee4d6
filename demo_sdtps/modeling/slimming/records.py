"""What the hooks of a model remember: its streams (streams.py) by the inputs of the blocks.

By them a block that the backward pass computes again (gradient checkpointing) drops the same. What a forward keeps belongs to
its thread, as replicas of nn.DataParallel run in threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from demo_sdtps.modeling.slimming.streams import Stream
from demo_sdtps.runtime.errors import UserError


class State:
    """What a `Slim` remembers: the losses of the last forward, and streams by the inputs of the blocks; of each thread the
    forward under way (`now`), the stream of the block that runs, and the one that the backward pass computes again."""

    def __init__(self) -> None:
        self.thread = threading.local()
        self.losses: list[torch.Tensor] = []
        self.records: dict[tuple, tuple[StorageWeakRef, Stream]] = {}

    def add(self, place: tuple, tensor: torch.Tensor, stream: Stream) -> None:
        storage = StorageWeakRef(tensor.untyped_storage())
        key = *place, storage.cdata, tensor.storage_offset()
        self.records[key] = storage, stream

    def get(self, place: tuple, tensor: torch.Tensor) -> Stream | None:
        key = *place, StorageWeakRef(tensor.untyped_storage()).cdata, tensor.storage_offset()
        return self.records[key][1] if key in self.records else None

    def forget(self) -> None:
        """Drop the records of tensors that are gone."""
        for key in [key for key, (storage, _) in list(self.records.items()) if storage.expired()]:
            self.records.pop(key, None)


def images_in(inputs: Any, name: str = "") -> dict[str, torch.Tensor]:
    """The images (B, C, H, W) of floating point in nested arguments, by their innermost names."""
    if isinstance(inputs, torch.Tensor):
        return {name: inputs} if inputs.ndim == 4 and inputs.is_floating_point() else {}
    if isinstance(inputs, (list, tuple)):
        inputs = {f"{name}{number}": value for number, value in enumerate(inputs)}
    if not isinstance(inputs, Mapping):
        return {}
    return {
        key: image
        for input_name, value in inputs.items()
        for key, image in images_in(value, str(input_name)).items()
    }


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
