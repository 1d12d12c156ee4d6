"""Slimming of any Vision Transformer, by hooks on its blocks (docs/method.md).

The convolution that makes the patches begins a `Stream`, the way of its images through the blocks. In one forward the i-th call
of a block continues the i-th call of the block before, whether the host goes image by image or block by block. Before the block
after a stage a hook drops patches, before every later one it cuts the arguments that have a row for each position, and after
the last it takes the extra tokens away. To restore is to give the whole grid after every block, which the next hook cuts again.
What is kept is said by stage.py and, where images share it, by streams.py.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from math import prod
from typing import Any
from weakref import ref

import torch
import torch._dynamo
from torch import nn

from demo_sdtps.modeling.modalities import split_rows
from demo_sdtps.modeling.sdtps import gather_tokens
from demo_sdtps.modeling.slimming.budget import make_budget
from demo_sdtps.modeling.slimming.records import State, is_backward
from demo_sdtps.modeling.slimming.scores.base import Context
from demo_sdtps.modeling.slimming.stage import BlockInput, patch_shares
from demo_sdtps.modeling.slimming.streams import (
    ForwardPass,
    Stream,
    StreamSlimming,
    without_graph,
)
from demo_sdtps.modeling.slimming.tokens import (
    PER_POSITION,
    Tokens,
    rope_of,
    rotary,
    scatter_tokens,
)
from demo_sdtps.modeling.slimming.towers import Tower, replace_methods
from demo_sdtps.runtime.errors import UserError

STEM = -1  # in place of the index of a block: the patch convolution


class Slim(StreamSlimming):
    """The stages that a model gets as its module `slimming`, and the hooks on its towers, which are methods, so that
    `copy.deepcopy` copies them with the model; `settings` are those of `StreamSlimming`. In place of `keep` the
    stages may leave a share `operations` of those of the dense model."""

    def __init__(
        self,
        towers: Sequence[Tower],
        *settings: Any,
        operations: float | None = None,
        **named_settings: Any,
    ):
        super().__init__(*settings, **named_settings)
        self.towers, self.budget = tuple(towers), None
        if operations is not None:
            self.budget = make_budget(operations, towers, self.blocks, self.merge)
            self.counts(10_000)  # refuses what images of no size allow
        self.handles: list[Any] = []
        self.state = State()

    def counts(self, patches: int) -> tuple[int, ...]:
        """Patches of a grid of `patches` that each stage leaves."""
        return self.budget.counts(patches) if self.budget else super().counts(patches)

    def attach(self, model: nn.Module) -> None:
        """Become a model's module `slimming`, and add the hooks to the model and its towers."""
        model.add_module("slimming", self)
        add = self.handles.append
        add(model.register_forward_pre_hook(self.begin, with_kwargs=True))
        add(model.register_forward_hook(self.end, always_call=True))
        for number, tower in enumerate(self.towers):
            add(tower.patches.register_forward_hook(partial(self.embed, number)))
            for index, block in enumerate(tower.blocks[self.blocks[0] :], self.blocks[0]):
                hook = partial(self.before, number, index)
                add(block.register_forward_pre_hook(hook, with_kwargs=True))
                if self.restore or block is tower.blocks[-1]:
                    # First, so that the hooks by which a library collects outputs get the changed ones.
                    after = partial(self.after, number, index)
                    add(block.register_forward_hook(after, prepend=True))
            replace_methods(model.get_submodule(tower.path), self.restore)

    def _replicate_for_data_parallel(self) -> Any:
        self.state.losses.clear()  # nn.DataParallel does not call the model itself
        return super()._replicate_for_data_parallel()

    @torch._dynamo.disable
    def begin(self, model: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The model is called, which has no argument `foreground`: a forward begins."""
        inputs = {key: value for key, value in kwargs.items() if key != "foreground"}
        if not is_backward():
            if not getattr(model, "_is_replica", False):
                self.state.losses.clear()
            self.state.forget()
            images, masks = images_in((args, inputs)), kwargs.get("foreground")
            now = ForwardPass(model.slimming, True, images, masks, self.state.losses)
            self.state.thread.now = now
        return args, inputs

    @torch._dynamo.disable
    def end(self, *_: object) -> None:
        """The model has ended, also by an error."""
        if not is_backward():
            self.state.thread.now = self.state.thread.stream = None

    @torch._dynamo.disable
    def embed(
        self, tower: int, convolution: nn.Conv2d, args: tuple[torch.Tensor], patches: torch.Tensor
    ) -> None:
        """The patch convolution of a tower has made patches (B, C, rows, columns) of images: a stream begins."""
        images, now = args[0], self.state.thread.now
        if is_backward():
            self._recomputed_stream(tower, STEM, images)
            return
        streams = [] if now is None else [stream for way in now.streams.values() for stream in way]
        is_under_way = any(stream.next_block == self.blocks[0] for stream in streams)
        # A method of the model is called, which has no hooks: a forward begins, or goes on where a tower has not begun.
        if now is None or not (now.is_whole or is_under_way):
            self.state.losses.clear()
            self.state.forget()
            now = self.state.thread.now = ForwardPass(self, False, {}, None, self.state.losses)
        slimming, size, stride = now.slimming, convolution.kernel_size, convolution.stride
        names = slimming.names_of(now, images)
        all_absent = images.new_ones(images.shape[0] // len(names), 1, dtype=torch.bool)
        missing = {name: all_absent for name in names if name in slimming.absent}
        shares = _foreground_shares(now.foreground, images, size, stride)
        foreground = {} if shares is None else split_rows(shares, names)
        # A traced graph (torch.jit) has tensors for numbers, and `len` of a tensor would fix an exported graph's batch.
        grid = int(patches.shape[-2]), int(patches.shape[-1])
        known = Context({}, {}, grid, missing=missing, patch_size=size, patch_stride=stride)
        context = replace(known, images=split_rows(images, names), foreground=foreground)
        # Pseudo-masks are made here, as nothing else keeps the images for the backward pass.
        known = replace(known, foreground=slimming.foreground(context))
        stream = Stream(slimming, names, lambda: images, known, self.blocks[0])
        now.streams[tower].append(stream)
        stream.record = replace(stream, images=ref(images), grids=[], extras={})
        self.state.add(tower, STEM, images, stream.record)

    @torch._dynamo.disable
    def before(
        self, number: int, index: int, block: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        """The input of block `index` of a tower, without the tokens that the stages so far drop."""
        tower, name = self.towers[number], "" if args else next(iter(kwargs))
        values = kwargs[name] if name else args[0]
        stream = self.state.thread.stream = self._stream(number, index, values)
        if stream is None:
            return None
        stage = bisect_left(self.blocks, index)  # the number of those before
        tokens = stream.stages[stage - 1] if stage else Tokens(values, extra=tower.suffix)
        if index in stream.extras:
            values = tower.swap(_cut(tower.swap(values), stream, index, tokens, tower.suffix))
        if index in self.blocks:
            rope = rope_of(kwargs)
            if rope is not None and tokens.positions is not None:
                rope = rotary(rope, tokens)
            rows = tokens.with_values(tower.swap(values))
            prefix = _prefix_of(rows, stream, tower, block)
            block_input = BlockInput(rows, stream.names, block, prefix, rope)
            now = self.state.thread.now if stream.record else None
            values = tower.swap(stream.slimming.run_stage(stage, stream, now, block_input))
            tokens = stream.stages[stage]
        if tokens.positions is None:
            return None

        def cut(key: str, value: Any) -> Any:
            is_cut = key in PER_POSITION and value is not None
            return PER_POSITION[key](value, tokens, tower.suffix) if is_cut else value

        kwargs = {key: cut(key, value) for key, value in kwargs.items()}
        # transformers gives masks, which an exported graph always has, by their place
        if len(args) > 1:
            keys = [*signature(block.forward).parameters, *[""] * len(args)]
            args = tuple(cut(*each) for each in zip(keys, args, strict=False))
        return (args, kwargs | {name: values}) if name else ((values, *args[1:]), kwargs)

    @torch._dynamo.disable
    def after(self, number: int, index: int, block: nn.Module, args: tuple, output: Any) -> Any:
        """The output of a block of a tower without extra tokens, or with the whole grid."""
        thread, tower = self.state.thread, self.towers[number]
        stream, thread.stream = thread.stream, None
        if thread.now and not thread.now.is_whole and not any(thread.now.streams.values()):
            thread.now = None
        stage = bisect_right(self.blocks, index)
        tokens = stream.stages[stage - 1] if stream else None
        if stream is None or tokens is None or tokens.positions is None:
            return None
        values = tower.swap(output[0] if isinstance(output, tuple) else output)
        end = values.shape[1] - tokens.extra
        start = end - tokens.positions.shape[1]
        patches = values[:, start:end]
        if self.restore:
            grid = stream.grids[-1].to(patches.dtype)
            patches = scatter_tokens(grid, tokens.positions, patches)
            # Not a view, which would keep the whole output.
            stream.extras[index + 1] = extras = values[:, end + tower.suffix :].clone()
            if stream.record is not None and torch.is_grad_enabled():
                stream.record.extras[index + 1] = without_graph(extras)
        suffix = values[:, end : end + tower.suffix]
        values = tower.swap(torch.cat([values[:, :start], patches, suffix], dim=1))
        return (values, *output[1:]) if isinstance(output, tuple) else values

    def _stream(self, tower: int, index: int, values: torch.Tensor) -> Stream | None:
        """The stream whose tokens are the input of block `index`; None for a block that is called by itself."""
        if is_backward():
            return self._recomputed_stream(tower, index, values)
        streams = self.state.thread.now.streams[tower] if self.state.thread.now else []
        stream = next((stream for stream in streams if stream.next_block == index), None)
        if stream is None or stream.record is None:
            return None
        stream.next_block += 1
        if stream.next_block == len(self.towers[tower].blocks):
            streams.remove(stream)
        self.state.add(tower, index, values, stream.record)
        return stream

    def _recomputed_stream(self, tower: int, index: int, values: torch.Tensor) -> Stream | None:
        """The stream that the backward pass computes again from this block on, or goes on to compute."""
        thread, record = self.state.thread, self.state.get(tower, index, values)
        place = tower, torch._C._current_graph_task_id()
        if record:
            again = replace(record, grids=list(record.grids), extras=dict(record.extras))
            if index == STEM:
                again.images = lambda: values
            thread.recomputed = place, again
        return thread.recomputed[1] if thread.recomputed[0] == place else None


def images_in(inputs: Any, name: str = "") -> dict[str, torch.Tensor]:
    """The images (B, C, H, W) of floating point in nested arguments, by their innermost names."""
    if isinstance(inputs, torch.Tensor):
        return {name: inputs} if inputs.ndim == 4 and inputs.is_floating_point() else {}
    if isinstance(inputs, (list, tuple)):
        inputs = {f"{name}{number}": value for number, value in enumerate(inputs)}
    images: dict[str, torch.Tensor] = {}
    for key, value in inputs.items() if isinstance(inputs, Mapping) else ():
        images |= images_in(value, str(key))
    return images


def _cut(
    values: torch.Tensor, stream: Stream, index: int, tokens: Tokens, suffix: int
) -> torch.Tensor:
    """Values (B, L, C) with the whole grid, the input of block `index`, → those of `tokens`."""
    patches = prod(stream.known.grid)
    end = values.shape[1] - suffix
    kept = gather_tokens(values[:, end - patches : end], tokens.grid_positions(patches))
    ends = values[:, : end - patches], values[:, end:], stream.extras.pop(index)
    return torch.cat([ends[0], kept, *ends[1:]], dim=1)


def _prefix_of(tokens: Tokens, stream: Stream, tower: Tower, block: nn.Module) -> int:
    """The number of tokens before the patches at the input of a block."""
    length, grid = tokens.values.shape[1], prod(stream.known.grid)
    patches = grid if tokens.positions is None else tokens.positions.shape[1]
    prefix = int(length) - tokens.extra - int(patches)
    if prefix < 0 or (tower.prefix is not None and prefix != tower.prefix):
        raise UserError(
            f"{type(block).__name__} gets {length} tokens where the grid has {patches} patches, but "
            f"prefix={tower.prefix} and suffix={tower.suffix} were expected around them; correct these numbers."
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
