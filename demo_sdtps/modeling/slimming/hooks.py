"""Slimming of any Vision Transformer, by hooks on its blocks (docs/method.md).

The convolution that makes the patches begins a `Stream`, the way of its images through the blocks. In one forward the i-th call
of a block continues the i-th call of the block before, whether the host goes image by image or block by block. Before the block
behind a stage a hook drops patches, before every later one it gathers what has a row for each position, and behind the last it
takes the extra tokens away or restores the grid. The hooks are methods of `Slim`, which `copy.deepcopy` copies with the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from math import inf, prod
from typing import Any
from weakref import ref

import torch
import torch._dynamo
from torch import nn

from demo_sdtps.modeling.slimming.scores.base import Score
from demo_sdtps.modeling.slimming.stage import Slimming, patch_shares
from demo_sdtps.modeling.slimming.streams import (
    KeptTokens,
    Pass,
    State,
    Stream,
    images_in,
    is_backward,
)
from demo_sdtps.modeling.slimming.tokens import PER_POSITION, Tokens, scatter_tokens
from demo_sdtps.modeling.slimming.towers import Layout, Tower
from demo_sdtps.runtime.errors import UserError

IMAGE = ("image",)
"""The modality of a model that has no names for them."""
FIRST = "first"
STEM = -1  # in place of the index of a block: the patch convolution


class Slim(Slimming):
    """The stages that a model gets as its module `slimming`, and the work of its hooks.

    `follow`: True, a score of images alone is summed over those of a forward; "first", all streams of a forward keep what the
    first keeps; False, each keeps its own. `names` are the modalities in the order in which the host encodes them; with
    `is_stacked` one call encodes all. `missing` ones have no vote in evaluation.
    """

    def __init__(
        self,
        layouts: Sequence[Layout],
        blocks: Sequence[int],
        keep: Sequence[float],
        scores: Sequence[Score],
        merge: bool = True,
        restore: bool = False,
        follow: bool | str = True,
        names: Sequence[str] = IMAGE,
        is_stacked: bool = False,
        missing: frozenset[str] = frozenset(),
    ):
        super().__init__(blocks, keep, scores, merge, shared=bool(follow))
        self.layouts, self.restore, self.follow = tuple(layouts), restore, follow
        self.names, self.is_stacked, self.missing = tuple(names), is_stacked, missing
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
        own: Any = self if level else module.slimming  # of a replica its own
        self.state.thread.now = Pass(
            own, level, {} if level else images_in((args, kwargs)), foreground
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
            self._found(tower, STEM, images)
            return
        now = self.now
        if (
            now is None or now.level == inf
        ):  # the host calls a method of the model, which has no hooks
            now = self.state.thread.now = Pass(self, inf, {}, None)
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
            self._names_of(now, images),
            frozenset() if now.slim.training else self.missing,
            foreground,
            self.blocks[0],
        )
        masks = now.slim.foreground(
            stream.context()
        )  # here, as nothing else keeps the images for the backward pass
        stream.foreground = torch.cat(list(masks.values())) if masks else None
        now.streams[tower].append(stream)
        stream.record = replace(stream, images=ref(images), chosen=[], held=[])
        self.state.record((tower, STEM), images, stream.record)

    def _names_of(self, now: Pass, images: torch.Tensor) -> tuple[str, ...]:
        """The modalities that the rows of images are of: those of the model's inputs, and for others the next in order."""
        if len(self.names) == 1:
            return self.names
        if self.is_stacked:
            present = tuple(name for name in self.names if name not in self.missing)
            batch = len(next(iter(now.inputs.values()), images))
            return (
                present
                if len(images) == len(present) * batch and not now.slim.training
                else self.names
            )
        # A second image of a modality has its name with a number.
        known = [
            name
            for key, image in now.inputs.items()
            for name in self.names
            if image is images and key.startswith(name)
        ]
        found = [*known, *(name for name in self.names if name not in now.named), *self.names][0]
        now.named.append(found)
        return (found,)

    @torch._dynamo.disable
    def before(
        self, tower: int, index: int, block: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        """The input of block `index` of a tower, without the tokens that the stages so far drop."""
        layout, name = self.layouts[tower], "" if args else next(iter(kwargs))
        given = kwargs[name] if name else args[0]
        stream = self.state.thread.stream = self._stream(tower, index, given)
        if stream is None:
            return None
        number = bisect_left(self.blocks, index)  # of stages before
        seen = (
            stream.chosen[number - 1].tokens if number else Tokens(given[:0], extra=layout.suffix)
        )
        if index in self.blocks:
            values = given.transpose(0, 1) if layout.tokens_first else given
            rope = kwargs.get("rope")
            rope = (
                rope
                if rope is None or seen.positions is None
                else PER_POSITION["rope"](rope, seen, 0)
            )
            left = self._choose(number, stream, layout, block, replace(seen, values=values), rope)
            seen = stream.chosen[number].tokens
            if left is not values:
                given = left.transpose(0, 1) if layout.tokens_first else left
        if seen.positions is None:
            return None
        kwargs = {
            key: PER_POSITION[key](value, seen, layout.suffix)
            if key in PER_POSITION and value is not None
            else value
            for key, value in kwargs.items()
        }
        return (args, {**kwargs, name: given}) if name else ((given, *args[1:]), kwargs)

    def _choose(
        self,
        number: int,
        stream: Stream,
        layout: Layout,
        block: nn.Module,
        tokens: Tokens,
        rope: torch.Tensor | None,
    ) -> torch.Tensor:
        """Stage `number` → the values that are left."""
        values, positions = tokens.values, tokens.grid_positions(prod(stream.grid))
        prefix = int(values.shape[1]) - tokens.extra - int(positions.shape[1])
        if prefix < 0 or (layout.prefix is not None and prefix != layout.prefix):
            raise UserError(
                f"{type(block).__name__} gets {values.shape[1]} tokens where the grid has {positions.shape[1]} "
                f"patches, but prefix={layout.prefix} and suffix={layout.suffix} were expected around them; say "
                "by these how many tokens stand before and behind the patches."
            )
        if self.restore:
            patches = tokens.patches(positions.shape[1])
            held = (
                scatter_tokens(stream.held[number - 1], positions, patches)
                if number
                else patches.clone()
            )
            stream.held[number : number + 1] = [held]
        slim = stream.slim
        is_trained = any(
            parameter.requires_grad for parameter in slim.stage_scores[number].parameters()
        )
        past = stream.chosen[number] if stream.record is stream else None
        score = past.score if past else self._given(number, stream, positions)
        if past and not past.is_given and is_trained:
            score = None  # computed again, so that autograd finds its tensors and dropout its random numbers
        step = slim(number, tokens, stream.context(), stream.names, block, prefix, rope, score)
        if is_trained and step.loss is not None and not torch.is_grad_enabled():
            raise _reentrant(f"The score {type(slim.stage_scores[number]).__name__}")
        # Not a view, which would keep the graph, and by it what the record waits for to go.
        places = replace(step.tokens, values=torch.empty_like(step.tokens.values[:0]))
        own = torch.cat(list(step.stage.score.values()))
        stream.chosen[number : number + 1] = [
            KeptTokens(places, own, past.is_given if past else score is not None)
        ]
        now = self.now
        if now is not None and stream.record and not past:
            now.losses += [] if step.loss is None else [step.loss]
            if self.follow == FIRST and stream.names[0] not in stream.missing:
                now.first.setdefault((number, stream.grid), own)
            stream.record.chosen.append(KeptTokens(places, _without_graph(own), score is not None))
            stream.record.held += (
                [_without_graph(held)] if self.restore and torch.is_grad_enabled() else []
            )
        return step.tokens.values

    def _given(self, number: int, stream: Stream, positions: torch.Tensor) -> torch.Tensor | None:
        """The score (B, n) of a stage that the streams of a forward share, None where each has its own."""
        now, scorer, images = self.now, stream.slim.stage_scores[number], stream.images()
        if now is None or images is None:
            return None
        key: tuple = (number, stream.grid)
        alike = {
            name: image
            for name, image in now.inputs.items()
            if image.shape[1:] == images.shape[1:] and (name in self.names or self.names == IMAGE)
        }
        if len({len(image) for image in alike.values()}) > 1:
            alike = {name: image for name, image in alike.items() if len(image) == len(images)}
        voters = {name: image for name, image in alike.items() if name not in stream.missing}
        if (
            self.follow is True
            and scorer.of_images
            and len(alike) > 1
            and voters
            and not self.is_stacked
        ):
            key = (number, stream.grid, stream.size, stream.stride, *voters)
            if key not in now.first:
                blank = {
                    name: image.new_empty(len(image), prod(stream.grid), 0)
                    for name, image in voters.items()
                }
                scores = scorer.scores(
                    replace(stream.context(), tokens=blank, images=voters, missing={})
                )
                now.first[key] = torch.stack(list(scores.values())).sum(dim=0)
        score = now.first.get(key)
        if score is None or len(images) % len(score):
            return None
        score = score.repeat(len(images) // len(score), 1)
        return score if self.follow == FIRST else score.gather(1, positions)

    @torch._dynamo.disable
    def after(self, tower: int, block: nn.Module, args: tuple, output: Any) -> Any:
        """The output of the last block of a tower, without extra tokens or with the whole grid."""
        own, layout = self.state.thread, self.layouts[tower]
        stream, own.stream = getattr(own, "stream", None), None
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
            patches = scatter_tokens(stream.held[-1].to(patches.dtype), places.positions, patches)
        values = torch.cat([prefix, patches, suffix], dim=1)
        values = values.transpose(0, 1) if layout.tokens_first else values
        return (values, *output[1:]) if isinstance(output, tuple) else values

    def _stream(self, tower: int, index: int, given: torch.Tensor) -> Stream | None:
        """The stream whose tokens are the input of block `index`; None for a block that is called by itself."""
        if is_backward():
            return self._found(tower, index, given)
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
            self.state.record((tower, index), given, stream.record)
        return stream

    def _found(self, tower: int, index: int, given: torch.Tensor) -> Stream | None:
        """The stream that the backward pass computes again from this block on, or goes on to compute."""
        found, place = (
            self.state.found((tower, index), given),
            (tower, torch._C._current_graph_task_id()),
        )
        if found:
            if self.restore and index != STEM and given.is_leaf and given.requires_grad:
                raise _reentrant("restore=True")
            stream = replace(found, chosen=list(found.chosen), held=list(found.held), next=index)
            stream.record = stream
            if index == STEM:
                stream.images = lambda: given
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


def _reentrant(what: str) -> UserError:
    return UserError(
        f"{what} needs gradients of dropped patches, which reentrant checkpointing and torch.no_grad lose; use "
        "checkpointing with use_reentrant=False, or evaluation mode."
    )


def _without_graph(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)
