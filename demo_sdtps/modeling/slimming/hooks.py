"""Slimming of any Vision Transformer, by hooks on its blocks (docs/method.md).

The convolution that makes the patches begins a `Stream`, the way of its images through the blocks. In one forward the i-th call
of a block continues the i-th call of the block before, whether the host goes image by image or block by block. Before the block
after a stage a hook drops patches, before every later one it gathers what has a row for each position, and after the last it
takes the extra tokens away or restores the grid. The hooks are methods of `Slim`, which `copy.deepcopy` copies with the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from math import inf
from typing import Any
from weakref import ref

import torch
import torch._dynamo
from torch import nn

from demo_sdtps.modeling.slimming.choice import StreamSlimming
from demo_sdtps.modeling.slimming.stage import patch_shares
from demo_sdtps.modeling.slimming.streams import (
    Pass,
    State,
    Stream,
    images_in,
    is_backward,
)
from demo_sdtps.modeling.slimming.tokens import PER_POSITION, Tokens, scatter_tokens
from demo_sdtps.modeling.slimming.towers import Layout, Tower
from demo_sdtps.runtime.errors import UserError

STEM = -1  # in place of the index of a block: the patch convolution


class Slim(StreamSlimming):
    """The stages that a model gets as its module `slimming`, and the hooks that feed them; `settings` are those of
    `StreamSlimming`."""

    def __init__(self, layouts: Sequence[Layout], *settings: Any, **named_settings: Any):
        super().__init__(*settings, **named_settings)
        self.layouts = tuple(layouts)
        self.handles: list[Any] = []
        self.state = State()

    def __getstate__(self) -> dict[str, Any]:  # a copy has a state of its own
        return {name: value for name, value in self.__dict__.items() if name != "state"}

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__({**values, "state": State()})

    @property
    def now(self) -> Pass | None:
        """The forward under way in this thread."""
        return getattr(self.state.thread, "now", None)

    def _replicate_for_data_parallel(self) -> Any:
        self.state.losses.clear()  # those of the last forward; nn.DataParallel does not call the model itself
        return super()._replicate_for_data_parallel()

    @torch._dynamo.disable
    def begin(self, level: int, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """A module, `level` modules below the model, is called: a forward begins where none is under way."""
        foreground = kwargs.get("foreground") if level == 0 else None
        kwargs = {key: value for key, value in kwargs.items() if level or key != "foreground"}
        if is_backward() or (self.now is not None and self.now.level < level):
            return args, kwargs
        slim: Any = self if level else module.slimming  # that of a replica
        self.state.thread.now = Pass(
            slim,
            level,
            {} if level else images_in((args, kwargs)),
            foreground,
            len(self.layouts),
        )
        self.state.forget()
        if not getattr(module, "_is_replica", False):
            self.state.losses.clear()
        return args, kwargs

    @torch._dynamo.disable
    def end(self, level: float, *_: object) -> None:
        """The module that began the forward has ended, also by an error."""
        now = self.now
        if now is not None and now.level == level and not is_backward():
            self.state.losses += now.losses
            self.state.thread.now = self.state.thread.stream = None

    @torch._dynamo.disable
    def embed(
        self, tower: int, convolution: nn.Conv2d, args: tuple[torch.Tensor], patches: torch.Tensor
    ) -> None:
        """The patch convolution of a tower has made patches (B, C, rows, columns) of images: a stream begins."""
        images = args[0]
        if is_backward():
            self._recomputed(tower, STEM, images)
            return
        now = self.now
        if (
            now is None or now.level == inf
        ):  # the host calls a method of the model, which has no hooks
            now = self.state.thread.now = Pass(self, inf, {}, None, len(self.layouts))
            self.state.forget()
        size, stride = tuple(convolution.kernel_size), tuple(convolution.stride)
        foreground = None
        if now.foreground is not None:
            if now.foreground.shape[1:] != (1, *images.shape[-2:]) or len(images) % len(
                now.foreground
            ):
                raise UserError(
                    f"foreground is {tuple(now.foreground.shape)} for images {tuple(images.shape)}; give masks "
                    "(B, 1, H, W) of the size of the images."
                )
            foreground = patch_shares(now.foreground.to(images), size, stride)
            foreground = foreground.repeat(len(images) // len(foreground), 1)
        rows, columns = map(
            int, patches.shape[-2:]
        )  # a traced graph (torch.jit) has tensors for numbers
        stream = Stream(
            now.slim,
            lambda: images,
            (rows, columns),
            size,
            stride,
            self.names_of(now, images),
            frozenset() if now.slim.training else self.missing,
            foreground,
            self.blocks[0],
        )
        masks = now.slim.foreground(
            stream.context()
        )  # here, as nothing else keeps the images for the backward pass
        stream.foreground = torch.cat(list(masks.values())) if masks else None
        now.streams[tower].append(stream)
        stream.record = replace(stream, images=ref(images), chosen=[], grids=[])
        self.state.record((tower, STEM), images, stream.record)

    @torch._dynamo.disable
    def before(
        self, tower: int, index: int, block: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        """The input of block `index` of a tower, without the tokens that the stages so far drop."""
        layout, name = self.layouts[tower], "" if args else next(iter(kwargs))
        inputs = kwargs[name] if name else args[0]
        stream = self.state.thread.stream = self._stream(tower, index, inputs)
        if stream is None:
            return None
        number = bisect_left(self.blocks, index)  # of stages before
        before = (
            stream.chosen[number - 1].tokens if number else Tokens(inputs[:0], extra=layout.suffix)
        )
        if index in self.blocks:
            values = inputs.transpose(0, 1) if layout.tokens_first else inputs
            rope = kwargs.get("rope")
            rope = (
                rope
                if rope is None or before.positions is None
                else PER_POSITION["rope"](rope, before, 0)
            )
            left = self.choose(
                self.now, number, stream, layout, block, replace(before, values=values), rope
            )
            before = stream.chosen[number].tokens
            if left is not values:
                inputs = left.transpose(0, 1) if layout.tokens_first else left
        if before.positions is None:
            return None
        kwargs = {
            key: PER_POSITION[key](value, before, layout.suffix)
            if key in PER_POSITION and value is not None
            else value
            for key, value in kwargs.items()
        }
        return (args, {**kwargs, name: inputs}) if name else ((inputs, *args[1:]), kwargs)

    @torch._dynamo.disable
    def after(self, tower: int, block: nn.Module, args: tuple, output: Any) -> Any:
        """The output of the last block of a tower, without extra tokens or with the whole grid."""
        thread, layout = self.state.thread, self.layouts[tower]
        stream, thread.stream = getattr(thread, "stream", None), None
        now = self.now
        if now is not None and not any(now.streams):
            self.end(inf)
        if stream is None or stream.chosen[-1].tokens.positions is None:
            return None
        values = output[0] if isinstance(output, tuple) else output
        values = values.transpose(0, 1) if layout.tokens_first else values
        places, behind = stream.chosen[-1].tokens, values.shape[1] - stream.chosen[-1].tokens.extra
        patches = values[:, behind - places.positions.shape[1] : behind]
        prefix, suffix = (
            values[:, : behind - patches.shape[1]],
            values[:, behind : behind + layout.suffix],
        )
        if self.restore:
            patches = scatter_tokens(stream.grids[-1].to(patches.dtype), places.positions, patches)
        values = torch.cat([prefix, patches, suffix], dim=1)
        values = values.transpose(0, 1) if layout.tokens_first else values
        return (values, *output[1:]) if isinstance(output, tuple) else values

    def _stream(self, tower: int, index: int, inputs: torch.Tensor) -> Stream | None:
        """The stream whose tokens are the input of block `index`; None for a block that is called by itself."""
        if is_backward():
            return self._recomputed(tower, index, inputs)
        now = self.now
        stream = (
            next((stream for stream in now.streams[tower] if stream.next == index), None)
            if now
            else None
        )
        if now is None or stream is None:
            return None
        stream.next += 1
        if stream.next == self.layouts[tower].depth:
            now.streams[tower].remove(stream)
        if stream.record:
            self.state.record((tower, index), inputs, stream.record)
        return stream

    def _recomputed(self, tower: int, index: int, inputs: torch.Tensor) -> Stream | None:
        """The stream that the backward pass computes again from this block on, or goes on to compute."""
        place = (tower, torch._C._current_graph_task_id())
        if record := self.state.find((tower, index), inputs):
            stream = replace(
                record, chosen=list(record.chosen), grids=list(record.grids), next=index
            )
            stream.record = stream
            if index == STEM:
                stream.images = lambda: inputs
            self.state.thread.replay = place, stream
        known, replayed = getattr(self.state.thread, "replay", (None, None))
        return replayed if known == place else None


def attach(model: nn.Module, slim: Slim, towers: Sequence[Tower]) -> None:
    """Add `slim` to a model as its module `slimming`, and its hooks to the model's towers."""
    model.add_module("slimming", slim)
    outer: dict[str, int] = {}
    for number, tower in enumerate(towers):
        parts = tower.path.split(".") if tower.path else []
        outer |= {".".join(parts[:level]): level for level in range(len(parts) + 1)}
        slim.handles.append(tower.patches.register_forward_hook(partial(slim.embed, number)))
        for index, block in enumerate(tower.blocks):
            if index >= slim.blocks[0]:
                slim.handles.append(
                    block.register_forward_pre_hook(
                        partial(slim.before, number, index), with_kwargs=True
                    )
                )
        slim.handles.append(tower.blocks[-1].register_forward_hook(partial(slim.after, number)))
    # From torch 2.1 on also after an error.
    always: Any = (
        {"always_call": True}
        if "always_call" in signature(nn.Module.register_forward_hook).parameters
        else {}
    )
    for path, level in outer.items():
        module = model.get_submodule(path)
        slim.handles.append(
            module.register_forward_pre_hook(partial(slim.begin, level), with_kwargs=True)
        )
        slim.handles.append(module.register_forward_hook(partial(slim.end, level), **always))
