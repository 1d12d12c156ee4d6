"""Slimming of any Vision Transformer, by hooks on its blocks (docs/method.md).

The convolution that makes the patches begins a `Stream`, the way of its images through the blocks. In one forward the i-th call
of a block continues the i-th call of the block before, whether the host goes image by image or block by block. Before the block
behind a stage a hook drops patches, before every later one it gathers what has a row for each position, and behind the last it
takes the extra tokens away or restores the grid. The hooks are methods of objects, which `copy.deepcopy` copies with the model.

What a forward chooses belongs to its thread, as replicas of nn.DataParallel run in threads. With gradients it is recorded by
the input of every block, so that a block that the backward pass computes again (gradient checkpointing) drops the same.
"""
from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from math import inf, prod
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch._dynamo
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from demo_sdtps.modeling.positions import PER_POSITION, put
from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.slimming import Slimming, patch_shares
from demo_sdtps.modeling.tokens import Tokens, split_rows
from demo_sdtps.modeling.towers import Layout
from demo_sdtps.runtime.errors import UserError

IMAGE = ("image",)
"""The modality of a model that has no names for them."""
FIRST = "first"
STEM = -1  # in place of the index of a block: the patch convolution


@dataclass(frozen=True)
class Chosen:
    """What a stage has chosen in one stream."""

    tokens: Tokens  # behind the stage, without their channels
    score: torch.Tensor  # (B, n)
    is_given: bool  # whether the score is not that of these images alone


@dataclass(eq=False)
class Stream:
    """The way of images through the blocks of a tower."""

    slim: Slim  # of a replica of nn.DataParallel its own
    images: ref[torch.Tensor]  # (B, 3, H, W)
    grid: tuple[int, int]
    size: tuple[int, ...]  # of a patch, in pixels
    stride: tuple[int, ...]
    names: tuple[str, ...]  # modalities of the rows
    missing: frozenset[str]
    foreground: torch.Tensor | None  # (B, N)
    next: int  # block
    chosen: list[Chosen] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)  # (B, N, C) at each stage: every token as it was last
    record: Stream | None = None  # the same without gradients, for the backward pass

    @property
    def is_replay(self) -> bool:
        return self.record is self

    def context(self) -> Context:
        """What a score reads of the images."""
        images = self.images()
        rows = {} if images is None else dict(zip(self.names, images.chunk(len(self.names)), strict=True))
        shares = {} if self.foreground is None else split_rows(self.foreground, self.names)
        return Context({}, {}, self.grid, missing=self.missing, images=rows, foreground=shares, patch_size=self.size,
                       patch_stride=self.stride)


class Pass:
    """One forward of a model in one thread, begun by a module that is `level` modules below the model."""

    def __init__(self, slim: Slim, level: float, inputs: Mapping[str, torch.Tensor], foreground: torch.Tensor | None):
        self.slim, self.level, self.inputs, self.foreground = slim, level, inputs, foreground
        self.is_recorded = torch.is_grad_enabled()
        self.streams: list[list[Stream]] = [[] for _ in slim.layouts]
        self.named: list[str] = []  # modalities of the streams so far
        self.first: dict[tuple, torch.Tensor] = {}  # scores that several streams share
        self.losses: list[torch.Tensor] = []


class Shared:
    """What the threads share: losses of the last forward, and streams by the inputs of the blocks."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.records: dict[tuple, tuple[StorageWeakRef, Stream]] = {}


_thread = threading.local()  # passes by `Slim`; the stream of the block that runs; the stream that is computed again
_shared: WeakKeyDictionary[Slim, Shared] = WeakKeyDictionary()


class Slim(Slimming):
    """The stages that a model gets as its module `slimming`, and the work of its hooks.

    `follow`: True, a score of images alone is summed over those of a forward; "first", all streams of a forward keep what the
    first keeps; False, each keeps its own. `names` are the modalities in the order in which the host encodes them; with
    `is_stacked` one call encodes all. `missing` ones have no vote in evaluation.
    """

    def __init__(self, layouts: Sequence[Layout], blocks: Sequence[int], keep: Sequence[float], scores: Sequence[Score],
                 merge: bool = True, restore: bool = False, follow: bool | str = True, names: Sequence[str] = IMAGE,
                 is_stacked: bool = False, missing: frozenset[str] = frozenset()):
        super().__init__(blocks, keep, scores, merge, shared=bool(follow))
        self.layouts, self.restore, self.follow = tuple(layouts), restore, follow
        self.names, self.is_stacked, self.missing = tuple(names), is_stacked, missing
        self.handles: list[Any] = []

    @torch._dynamo.disable
    def begin(self, module: nn.Module, level: int, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """A module, `level` modules below the model, is called: a forward begins where none is under way."""
        now = _passes().get(self)
        if _is_backward() or (now is not None and now.level < level):
            return None
        shared, own, inputs, foreground = shared_of(self), self, {}, None
        if level == 0:
            own, kwargs = module.slimming, dict(kwargs)  # type: ignore[assignment]
            foreground = kwargs.pop("foreground", None)
            inputs = images_in((args, kwargs))
        _passes()[self] = Pass(own, level, inputs, foreground)
        if not getattr(module, "_is_replica", False):
            shared.losses.clear()
        for key in [key for key, (storage, _) in list(shared.records.items()) if storage.expired()]:
            shared.records.pop(key, None)
        return args, kwargs

    @torch._dynamo.disable
    def end(self, level: float) -> None:
        """The module that began the forward has ended, also by an error."""
        now = _passes().get(self)
        if now is not None and now.level == level and not _is_backward():
            shared_of(self).losses += now.losses
            del _passes()[self]

    @torch._dynamo.disable
    def embed(self, tower: int, convolution: nn.Conv2d, images: torch.Tensor, patches: torch.Tensor) -> None:
        """The patch convolution of a tower has made patches (B, C, rows, columns) of images: a stream begins."""
        if _is_backward():
            self._found(tower, STEM, images)
            return
        now = _passes().get(self)
        if now is None or now.level == inf:  # the host calls a method of the model, which has no hooks
            now = _passes()[self] = Pass(self, inf, {}, None)
        size, stride = tuple(convolution.kernel_size), tuple(convolution.stride)
        foreground = None
        if now.foreground is not None:
            foreground = patch_shares(now.foreground.to(images.device), size, stride)
            foreground = foreground.repeat(len(images) // len(foreground), 1)
        rows, columns = map(int, patches.shape[-2:])  # a traced graph (torch.jit) has tensors for numbers
        stream = Stream(now.slim, ref(images), (rows, columns), size, stride, self._names_of(now, images),
                        frozenset() if now.slim.training else self.missing, foreground, self.blocks[0])
        now.streams[tower].append(stream)
        if now.is_recorded:
            stream.record = replace(stream, chosen=[], held=[])
            self._record(tower, STEM, images, stream.record)

    def _names_of(self, now: Pass, images: torch.Tensor) -> tuple[str, ...]:
        """The modalities that the rows of images are of: those of the model's inputs, and for others the next in order."""
        if len(self.names) == 1:
            return self.names
        if self.is_stacked:
            present = tuple(name for name in self.names if name not in self.missing)
            batch = len(next(iter(now.inputs.values()), images))
            return present if len(images) == len(present) * batch and not now.slim.training else self.names
        # A second image of a modality has its name with a number.
        known = [name for key, image in now.inputs.items() for name in self.names if image is images and key.startswith(name)]
        found = [*known, *(name for name in self.names if name not in now.named), *self.names][0]
        now.named.append(found)
        return (found,)

    @torch._dynamo.disable
    def before(self, tower: int, index: int, block: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """The input of block `index` of a tower, without the tokens that the stages so far drop."""
        layout, name = self.layouts[tower], "" if args else next(iter(kwargs))
        given = kwargs[name] if name else args[0]
        stream = _thread.stream = self._stream(tower, index, given)
        if stream is None:
            return None
        number = bisect_left(self.blocks, index)  # of stages before
        seen = stream.chosen[number - 1].tokens if number else Tokens(given[:0])
        if index in self.blocks:
            values = given.transpose(0, 1) if layout.tokens_first else given
            rope = kwargs.get("rope")
            rope = rope if rope is None or seen.positions is None else PER_POSITION["rope"](rope, seen, 0)
            left = self._choose(number, stream, layout, block, replace(seen, values=values), rope)
            seen = stream.chosen[number].tokens
            if left is not values:
                given = left.transpose(0, 1) if layout.tokens_first else left
        if seen.positions is None:
            return None
        kwargs = {key: PER_POSITION[key](value, seen, layout.suffix) if key in PER_POSITION and value is not None else value
                  for key, value in kwargs.items()}
        return (args, {**kwargs, name: given}) if name else ((given, *args[1:]), kwargs)

    def _choose(self, number: int, stream: Stream, layout: Layout, block: nn.Module, before: Tokens,
                rope: torch.Tensor | None) -> torch.Tensor:
        """Stage `number`: tokens (B, L, C), suffix included → those that are left."""
        values, end = before.values, int(before.values.shape[1]) - layout.suffix
        tokens = replace(before, values=values[:, :end])
        positions = tokens.grid_positions(prod(stream.grid))
        prefix = end - tokens.extra - int(positions.shape[1])
        if prefix < 0 or (layout.prefix is not None and prefix != layout.prefix):
            raise UserError(f"{type(block).__name__} gets {values.shape[1]} tokens where the grid has {positions.shape[1]} "
                            f"patches, but prefix={layout.prefix} and suffix={layout.suffix} were expected around them; say "
                            "by these how many tokens stand before and behind the patches.")
        if self.restore:
            patches = tokens.patches(positions.shape[1])
            held = put(stream.held[number - 1], positions, patches) if number else patches.clone()
            stream.held[number:number + 1] = [held]
        slim, is_trained = stream.slim, self._is_trained(number, stream)
        past = stream.chosen[number] if stream.is_replay else None
        score = self._given(number, stream, positions)
        if past:  # computed as before, so that autograd finds the tensors that it expects
            score = past.score if past.is_given or not is_trained else None
        step = slim(number, tokens, stream.context(), stream.names, block, prefix, rope, score)
        if not past:
            places = replace(step.tokens, values=step.tokens.values[:0])
            own = torch.cat(list(step.stage.score.values()))
            stream.chosen.append(Chosen(places, own, score is not None))
            now = _passes().get(self)
            if now is not None:
                now.losses += [] if step.loss is None else [step.loss]
                if self.follow == FIRST and stream.names[0] not in stream.missing:
                    now.first.setdefault((number,), own)
            if stream.record:
                stream.record.chosen.append(Chosen(places, _without_graph(own), score is not None))
                stream.record.held += [_without_graph(held)] if self.restore else []
        if step.tokens.positions is before.positions:
            return values
        return torch.cat([step.tokens.values, values[:, end:]], dim=1) if layout.suffix else step.tokens.values

    def _given(self, number: int, stream: Stream, positions: torch.Tensor) -> torch.Tensor | None:
        """The score (B, n) of a stage that the streams of a forward share, None where each has its own."""
        now, scorer, images = _passes().get(self), stream.slim.stage_scores[number], stream.images()
        if now is None or images is None:
            return None
        key: tuple = (number,)
        voters = {name: image for name, image in now.inputs.items() if image.shape[1:] == images.shape[1:]
                  and name not in stream.missing and (name in self.names or self.names == IMAGE)}
        if self.follow is True and scorer.of_images and len(voters) > 1 and not self.is_stacked:
            key = (number, stream.grid, stream.size, stream.stride)
            if key not in now.first:
                blank = {name: image.new_empty(len(image), prod(stream.grid), 0) for name, image in voters.items()}
                scores = scorer.scores(replace(stream.context(), tokens=blank, images=voters, missing=frozenset()))
                now.first[key] = torch.stack(list(scores.values())).sum(dim=0)
        score = now.first.get(key)
        if score is None or len(images) % len(score):
            return None
        score = score.repeat(len(images) // len(score), 1)
        return score if self.follow == FIRST else score.gather(1, positions)

    def _is_trained(self, number: int, stream: Stream) -> bool:
        """Whether the score of a stage is trained. Raises `UserError` where reentrant checkpointing loses a gradient."""
        is_trained = any(parameter.requires_grad for parameter in stream.slim.stage_scores[number].parameters())
        if is_trained and stream.foreground is not None and stream.record and not torch.is_grad_enabled():
            raise _reentrant(f"The score {type(stream.slim.stage_scores[number]).__name__}")
        return is_trained

    @torch._dynamo.disable
    def after(self, tower: int, output: Any) -> Any:
        """The output of the last block of a tower, without extra tokens or with the whole grid."""
        stream, layout = _thread.stream, self.layouts[tower]
        if stream is None or stream.chosen[-1].tokens.positions is None:
            return None
        values = output[0] if isinstance(output, tuple) else output
        values = values.transpose(0, 1) if layout.tokens_first else values
        places, end = stream.chosen[-1].tokens, values.shape[1] - layout.suffix
        body = replace(places, values=values[:, :end])
        patches = body.patches(places.positions.shape[1])
        prefix = values[:, :end - places.extra - patches.shape[1]]
        if self.restore:
            patches = put(stream.held[-1].to(patches.dtype), places.positions, patches)
        values = torch.cat([prefix, patches, values[:, end:]], dim=1)
        values = values.transpose(0, 1) if layout.tokens_first else values
        return (values, *output[1:]) if isinstance(output, tuple) else values

    def _stream(self, tower: int, index: int, given: torch.Tensor) -> Stream | None:
        """The stream whose tokens are the input of block `index`; None for a block that is called by itself."""
        if _is_backward():
            return self._found(tower, index, given)
        now = _passes().get(self)
        stream = next((stream for stream in now.streams[tower] if stream.next == index), None) if now else None
        if now is None or stream is None:
            return None
        stream.next += 1
        if stream.next == self.layouts[tower].depth:
            now.streams[tower].remove(stream)
            if now.level == inf and not any(now.streams):
                self.end(inf)
        if stream.record:
            self._record(tower, index, given, stream.record)
        return stream

    def _record(self, tower: int, index: int, given: torch.Tensor, stream: Stream) -> None:
        storage = StorageWeakRef(given.untyped_storage())
        shared_of(self).records[tower, index, storage.cdata, given.storage_offset()] = storage, stream

    def _found(self, tower: int, index: int, given: torch.Tensor) -> Stream | None:
        """The stream that the backward pass computes again from this block on, or goes on to compute."""
        key = tower, index, StorageWeakRef(given.untyped_storage()).cdata, given.storage_offset()
        found = shared_of(self).records.get(key)
        if found:
            if self.restore and index != STEM and given.is_leaf and given.requires_grad:
                raise _reentrant("restore=True")
            stream = replace(found[1], held=list(found[1].held), next=index)
            stream.record = stream
            _thread.replay = self, tower, stream
        owner, place, replayed = getattr(_thread, "replay", (None, None, None))
        return replayed if owner is self and place == tower else None


def attach(model: nn.Module, slim: Slim, paths: Sequence[tuple[str, Sequence[nn.Module], nn.Conv2d]]) -> None:
    """Add `slim` to a model as its module `slimming`, and its hooks: towers are paths, blocks and patch convolutions."""
    model.add_module("slimming", slim)
    handles = slim.handles
    always: Any = {"always_call": True} if "always_call" in signature(nn.Module.register_forward_hook).parameters else {}
    for tower, (path, blocks, convolution) in enumerate(paths):
        for level, name in enumerate(["", *_ancestors(path)]):
            outer = OuterHook(slim, level)
            module = model.get_submodule(name)
            if not any(getattr(hook, "__self__", None) == outer for hook in module._forward_pre_hooks.values()):
                handles.append(module.register_forward_pre_hook(outer.before, with_kwargs=True))
                handles.append(module.register_forward_hook(outer.after, **always))
        handles.append(convolution.register_forward_hook(TowerHook(slim, tower).embed))
        for index, block in enumerate(blocks):
            if index >= slim.blocks[0]:
                handles.append(block.register_forward_pre_hook(BlockHook(slim, tower, index).before, with_kwargs=True))
        handles.append(blocks[-1].register_forward_hook(TowerHook(slim, tower).after))


@dataclass(frozen=True)
class OuterHook:
    """Hooks of the model and of the modules that its towers are in."""

    slim: Slim
    level: int

    def before(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        return self.slim.begin(module, self.level, args, kwargs)

    def after(self, module: nn.Module, args: tuple, output: object) -> None:
        self.slim.end(self.level)


@dataclass(frozen=True)
class TowerHook:
    """Hooks of the patch convolution and of the last block."""

    slim: Slim
    tower: int

    def embed(self, convolution: nn.Conv2d, args: tuple, patches: torch.Tensor) -> None:
        self.slim.embed(self.tower, convolution, args[0], patches)

    def after(self, block: nn.Module, args: tuple, output: Any) -> Any:
        return self.slim.after(self.tower, output)


@dataclass(frozen=True)
class BlockHook:
    """The hook of a block."""

    slim: Slim
    tower: int
    index: int

    def before(self, block: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        return self.slim.before(self.tower, self.index, block, args, kwargs)


def images_in(inputs: Any, name: str = "") -> dict[str, torch.Tensor]:
    """The images (B, C, H, W) of floating point in nested arguments, by their innermost names."""
    if isinstance(inputs, torch.Tensor):
        return {name: inputs} if inputs.ndim == 4 and inputs.is_floating_point() else {}
    if isinstance(inputs, (list, tuple)):
        return {key: image for number, value in enumerate(inputs) for key, image in images_in(value, f"{name}{number}").items()}
    if isinstance(inputs, Mapping):
        return {key: image for own, value in inputs.items() for key, image in images_in(value, str(own)).items()}
    return {}


def shared_of(slim: Slim) -> Shared:
    return _shared.setdefault(slim, Shared())


def _passes() -> WeakKeyDictionary[Slim, Pass]:
    if not hasattr(_thread, "passes"):
        _thread.passes = WeakKeyDictionary()
    return _thread.passes


def _is_backward() -> bool:
    """Whether autograd runs in this thread, which computes blocks again under checkpointing."""
    return torch._C._current_graph_task_id() != -1


def _reentrant(what: str) -> UserError:
    return UserError(f"{what} needs gradients of dropped patches, which reentrant checkpointing loses; use checkpointing with "
                     "use_reentrant=False.")


def _without_graph(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _ancestors(path: str) -> list[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
