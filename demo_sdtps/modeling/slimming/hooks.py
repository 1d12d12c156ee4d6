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
from math import inf, prod
from typing import Any
from weakref import ref

import torch
import torch._dynamo
from torch import nn

from demo_sdtps.modeling.slimming.records import State, images_in, is_backward
from demo_sdtps.modeling.slimming.stage import BlockInput, patch_shares
from demo_sdtps.modeling.slimming.streams import ForwardPass, Stream, StreamSlimming
from demo_sdtps.modeling.slimming.tokens import PER_POSITION, Tokens, scatter_tokens
from demo_sdtps.modeling.slimming.towers import Layout, Tower
from demo_sdtps.runtime.errors import UserError

STEM = -1  # in place of the index of a block: the patch convolution


class Slim(StreamSlimming):
    """The stages that a model gets as its module `slimming`, and the hooks on its towers of these layouts; `settings` are
    those of `StreamSlimming`."""

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
    def now(self) -> ForwardPass | None:
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
        slimming: Any = self if level else module.slimming  # of a replica its own
        self._start(slimming, level, {} if level else images_in((args, kwargs)), foreground)
        if not getattr(module, "_is_replica", False):
            self.state.losses.clear()
        return args, kwargs

    def _start(
        self, slimming: StreamSlimming, level: float, inputs: dict, foreground: torch.Tensor | None
    ) -> ForwardPass:
        now = ForwardPass(slimming, level, inputs, foreground, [[] for _ in self.layouts])
        self.state.thread.now = now
        self.state.forget()
        return now

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
            self._recomputed_stream(tower, STEM, images)
            return
        # The host may call a method of the model, which has no hooks.
        now = self.now
        if now is None or now.level == inf:
            now = self._start(self, inf, {}, None)
        size, stride = tuple(convolution.kernel_size), tuple(convolution.stride)
        # A traced graph (torch.jit) has tensors for numbers.
        rows, columns = map(int, patches.shape[-2:])
        stream = Stream(
            now.slimming,
            lambda: images,
            (rows, columns),
            size,
            stride,
            now.slimming.names_of(now, images),
            frozenset() if now.slimming.training else self.missing,
            _foreground_shares(now.foreground, images, size, stride),
            self.blocks[0],
        )
        # Pseudo-masks are made here, as nothing else keeps the images for the backward pass.
        masks = now.slimming.foreground(stream.context())
        stream.foreground = torch.cat(list(masks.values())) if masks else None
        now.streams[tower].append(stream)
        stream.record = replace(stream, images=ref(images), stages=[], grids=[])
        self.state.add((tower, STEM), images, stream.record)

    @torch._dynamo.disable
    def before(
        self, tower: int, index: int, block: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        """The input of block `index` of a tower, without the tokens that the stages so far drop."""
        layout, name = self.layouts[tower], "" if args else next(iter(kwargs))
        values = kwargs[name] if name else args[0]
        stream = self.state.thread.stream = self._stream(tower, index, values)
        if stream is None:
            return None
        number = bisect_left(self.blocks, index)  # of stages before
        tokens = (
            stream.stages[number - 1].tokens if number else Tokens(values[:0], extra=layout.suffix)
        )
        if index in self.blocks:
            rows = values.transpose(0, 1) if layout.tokens_first else values
            rope = kwargs.get("rope")
            if rope is not None and tokens.positions is not None:
                rope = PER_POSITION["rope"](rope, tokens, 0)
            tokens = replace(tokens, values=rows)
            prefix = _prefix_of(tokens, stream, layout, block)
            block_input = BlockInput(tokens, stream.names, block, prefix, rope)
            remaining = stream.slimming.run_stage(number, stream, self.now, block_input)
            tokens = stream.stages[number].tokens
            if remaining is not rows:
                values = remaining.transpose(0, 1) if layout.tokens_first else remaining
        if tokens.positions is None:
            return None
        kwargs = {
            key: PER_POSITION[key](value, tokens, layout.suffix)
            if key in PER_POSITION and value is not None
            else value
            for key, value in kwargs.items()
        }
        return (args, {**kwargs, name: values}) if name else ((values, *args[1:]), kwargs)

    @torch._dynamo.disable
    def after(self, tower: int, block: nn.Module, args: tuple, output: Any) -> Any:
        """The output of the last block of a tower, without extra tokens or with the whole grid."""
        thread, layout = self.state.thread, self.layouts[tower]
        stream, thread.stream = getattr(thread, "stream", None), None
        now = self.now
        if now is not None and not any(now.streams):
            self.end(inf)
        places = stream.stages[-1].tokens if stream else None
        if stream is None or places is None or places.positions is None:
            return None
        values = output[0] if isinstance(output, tuple) else output
        values = values.transpose(0, 1) if layout.tokens_first else values
        end = values.shape[1] - places.extra
        start = end - places.positions.shape[1]
        patches = values[:, start:end]
        if self.restore:
            patches = scatter_tokens(stream.grids[-1].to(patches.dtype), places.positions, patches)
        values = torch.cat(
            [values[:, :start], patches, values[:, end : end + layout.suffix]], dim=1
        )
        values = values.transpose(0, 1) if layout.tokens_first else values
        return (values, *output[1:]) if isinstance(output, tuple) else values

    def _stream(self, tower: int, index: int, values: torch.Tensor) -> Stream | None:
        """The stream whose tokens are the input of block `index`; None for a block that is called by itself."""
        if is_backward():
            return self._recomputed_stream(tower, index, values)
        streams = self.now.streams[tower] if self.now else []
        stream = next((stream for stream in streams if stream.next_block == index), None)
        if stream is None:
            return None
        stream.next_block += 1
        if stream.next_block == self.layouts[tower].depth:
            streams.remove(stream)
        if stream.record:
            self.state.add((tower, index), values, stream.record)
        return stream

    def _recomputed_stream(self, tower: int, index: int, values: torch.Tensor) -> Stream | None:
        """The stream that the backward pass computes again from this block on, or goes on to compute."""
        record = self.state.get((tower, index), values)
        place = tower, torch._C._current_graph_task_id()
        if record:
            again = replace(record, stages=list(record.stages), grids=list(record.grids))
            if index == STEM:
                again.images = lambda: values
            self.state.thread.recomputed = place, again
        known, stream = getattr(self.state.thread, "recomputed", (None, None))
        return stream if known == place else None


def attach(model: nn.Module, slim: Slim, towers: Sequence[Tower]) -> None:
    """Add `slim` to a model as its module `slimming`, and its hooks to the model's towers."""
    model.add_module("slimming", slim)
    levels: dict[str, int] = {}  # of the modules around the towers, by path
    for number, tower in enumerate(towers):
        names = tower.path.split(".") if tower.path else []
        levels |= {".".join(names[:level]): level for level in range(len(names) + 1)}
        slim.handles.append(tower.patches.register_forward_hook(partial(slim.embed, number)))
        for index, block in enumerate(tower.blocks[slim.blocks[0] :], slim.blocks[0]):
            hook = partial(slim.before, number, index)
            slim.handles.append(block.register_forward_pre_hook(hook, with_kwargs=True))
        slim.handles.append(tower.blocks[-1].register_forward_hook(partial(slim.after, number)))
    for path, level in levels.items():
        module, hook = model.get_submodule(path), partial(slim.begin, level)
        slim.handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        end = partial(slim.end, level)
        slim.handles.append(module.register_forward_hook(end, always_call=True))


def _prefix_of(tokens: Tokens, stream: Stream, layout: Layout, block: nn.Module) -> int:
    """The number of tokens before the patches at the input of a block."""
    length, patches = tokens.values.shape[1], prod(stream.grid)
    if tokens.positions is not None:
        patches = tokens.positions.shape[1]
    prefix = int(length) - tokens.extra - int(patches)
    if prefix < 0 or (layout.prefix is not None and prefix != layout.prefix):
        raise UserError(
            f"{type(block).__name__} gets {length} tokens where the grid has {patches} "
            f"patches, but prefix={layout.prefix} and suffix={layout.suffix} were expected around them; say "
            "by these how many tokens stand before and after the patches."
        )
    return prefix


def _foreground_shares(
    masks: torch.Tensor | None, images: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor | None:
    """`patch_shares` (B, N) of masks that the images of several modalities, one after the other, have in common."""
    if masks is None:
        return None
    if masks.shape[1:] != (1, *images.shape[-2:]) or len(images) % len(masks):
        raise UserError(
            f"foreground is {tuple(masks.shape)} for images {tuple(images.shape)}; give masks "
            "(B, 1, H, W) of the size of the images."
        )
    return patch_shares(masks.to(images), size, stride).repeat(len(images) // len(masks), 1)
