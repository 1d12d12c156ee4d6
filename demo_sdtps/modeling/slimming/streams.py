"""The images on their way through the blocks of a slimmed Vision Transformer, and what a recomputation needs of them.

What a forward chooses belongs to its thread, as replicas of nn.DataParallel run in threads. It is recorded by the input of
every block, so that a block that the backward pass computes again (gradient checkpointing with use_reentrant=False) drops the
same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from demo_sdtps.modeling.slimming.scores.base import Context
from demo_sdtps.modeling.slimming.tokens import Tokens, split_rows
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from demo_sdtps.modeling.slimming.stage import Slimming


@dataclass(frozen=True)
class KeptTokens:
    """What a stage has chosen in one stream."""

    tokens: Tokens  # after the stage, without their channels
    score: torch.Tensor  # (B, n)
    is_given: bool  # whether the score is not that of these images alone


@dataclass(eq=False)
class Stream:
    """The way of images through the blocks of a tower."""

    slim: Slimming  # of a replica of nn.DataParallel its own
    images: Callable[[], torch.Tensor | None]  # (B, 3, H, W); of a record a weak reference
    grid: tuple[int, int]
    size: tuple[int, ...]  # of a patch, in pixels
    stride: tuple[int, ...]
    names: tuple[str, ...]  # modalities of the rows
    missing: frozenset[str]
    foreground: torch.Tensor | None  # (B, N)
    next: int  # block
    chosen: list[KeptTokens] = field(default_factory=list)
    # (B, N, C) at each stage, with `restore`: every token as it was last
    grids: list[torch.Tensor] = field(default_factory=list)
    # the same without gradients, for the backward pass; of a stream computed again itself
    record: Stream | None = None

    def context(self) -> Context:
        """What a score reads of the images."""
        images = self.images()
        rows = (
            {}
            if images is None
            else dict(zip(self.names, images.chunk(len(self.names)), strict=True))
        )
        shares = {} if self.foreground is None else split_rows(self.foreground, self.names)
        absent = {
            name: torch.ones(len(image), 1, dtype=torch.bool, device=image.device)
            for name, image in rows.items()
            if name in self.missing
        }
        return Context(
            {},
            {},
            self.grid,
            missing=absent,
            images=rows,
            foreground=shares,
            patch_size=self.size,
            patch_stride=self.stride,
        )


class Pass:
    """One forward of a model in one thread, begun by a module that is `level` modules below the model."""

    def __init__(
        self,
        slim: Slimming,
        level: float,
        inputs: Mapping[str, torch.Tensor],
        foreground: torch.Tensor | None,
        towers: int,
    ):
        self.slim, self.level, self.inputs, self.foreground = slim, level, inputs, foreground
        self.streams: list[list[Stream]] = [[] for _ in range(towers)]
        self.named: list[str] = []  # modalities of the streams so far
        self.first: dict[tuple, torch.Tensor] = {}  # scores that several streams share
        self.losses: list[torch.Tensor] = []


class State:
    """What a `Slim` remembers: the losses of the last forward, and streams by the inputs of the blocks; of each thread the
    forward under way (`now`), the stream of the block that runs, and the one that the backward pass computes again."""

    def __init__(self) -> None:
        self.thread = threading.local()
        self.losses: list[torch.Tensor] = []
        self.records: dict[tuple, tuple[StorageWeakRef, Stream]] = {}

    def record(self, place: tuple, tensor: torch.Tensor, stream: Stream) -> None:
        storage = StorageWeakRef(tensor.untyped_storage())
        self.records[(*place, storage.cdata, tensor.storage_offset())] = storage, stream

    def find(self, place: tuple, tensor: torch.Tensor) -> Stream | None:
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
        return {
            key: image
            for number, value in enumerate(inputs)
            for key, image in images_in(value, f"{name}{number}").items()
        }
    if isinstance(inputs, Mapping):
        return {
            key: image
            for input_name, value in inputs.items()
            for key, image in images_in(value, str(input_name)).items()
        }
    return {}


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
