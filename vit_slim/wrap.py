"""How a model prunes tokens: its blocks, its patch convolutions and the model itself become wrappers of their classes.

A module keeps its name, parameters and state, and gets a subclass of its class (`wrap`), whose forward asks the model's
`Slimming`; `unwrap` gives the class back. The patch convolution begins a `Batch`, the one object that belongs to a tower and to
this forward. The batch goes from block to block: the i-th call of a block continues the i-th call of the block before. A stage
runs in the block after it, and later blocks get those rows of their arguments that belong to the remaining patches; the last
block takes the extra tokens away.

Gradient checkpointing calls a block a second time during the backward pass, with the same input. That input is made `Tokens`,
which know their batch, so that the second call keeps the patches of the first, whichever forward it belongs to.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial, wraps
from itertools import accumulate
from math import ceil, prod
from re import search
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from vit_slim.errors import UserError
from vit_slim.scores import saliency
from vit_slim.stage import Block, Score, State, Step
from vit_slim.towers import Tower, plan_counts

LOST = "its patches do not come to all blocks and heads as embedded; slim it again after a part was replaced"
METHODS = "forward", "forward_features", "encode_image", "get_image_features"  # which encode images
STEPS = 1, 2, 4, 8, 14, 16, 32  # pixels of a patch, on a side, in the pictures that heads draw
NO_GRAPH = (
    "{} cannot follow token pruning; use torch.export, torch.jit.trace or torch.compile, or call it on the dense model "
    "(vit_slim.unslim)."
)


class Batch:
    """The images of one call of a tower's patch convolution, on their way through its blocks."""

    def __init__(self, state: State, count: int):
        self.states = [state]  # before the first stage, and after each
        self.block = 0  # the next one
        self.count = count  # of images


class Tokens(torch.Tensor):
    """An input that gradient checkpointing may pass a second time, and what is `known` of it: the `Batch` of tokens, the
    saliency of images. What is computed of it is a plain tensor; reentrant checkpointing detaches it before."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    known: Any

    def detach(self) -> "Tokens":
        detached = super().detach().as_subclass(Tokens)
        detached.known = self.known
        return detached

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)


def remember(tensor: Any, known: Any) -> None:
    """Make a tensor `Tokens`, in place, where gradient checkpointing may pass it a second time."""
    needs_backward = torch.is_grad_enabled() or tensor.requires_grad
    is_eager = type(tensor) in (torch.Tensor, Tokens) and not torch.compiler.is_compiling()
    if is_eager and needs_backward:
        tensor.__class__, tensor.known = Tokens, known


class Wrapped(nn.Module):
    """First base class of the class of a module that `wrap` has changed; the second is the class that it had."""

    pruned: Callable  # (the module, its own forward, arguments, keyword arguments) → output

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A new model of the class is a dense one."""
        return cls.__bases__[1](*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Its class has no name by which pickle could find it.
        return new_wrapped, type(self).__bases__[1:], super().__reduce_ex__(protocol)[2]

    def _replicate_for_data_parallel(self) -> Any:
        raise UserError(
            "nn.DataParallel does not run a slimmed model; use nn.parallel.DistributedDataParallel."
        )

    def __prepare_scriptable__(self) -> None:  # which torch.jit.script asks for
        raise UserError(NO_GRAPH.format("torch.jit.script"))


@cache
def wrapped_class(dense: Any) -> Any:
    """The class of wrapped modules of a dense class."""
    methods = {name: prunes(name, getattr(dense, name)) for name in METHODS if hasattr(dense, name)}
    return type(dense.__name__, (Wrapped, dense), {"__module__": dense.__module__, **methods})


def prunes(name: str, method: Callable) -> Callable:
    """A wrapped module's method `name`, which is `method` of its dense class; of a part of the model, its forward alone."""

    @wraps(method)  # whose arguments torch.export reads
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name != "forward" and "slimming" not in vars(self):
            return method(self, *args, **kwargs)
        return self.pruned(self, partial(method, self), args, kwargs)

    return run


def new_wrapped(dense: Any) -> nn.Module:
    """A wrapped module of a dense class, without state."""
    return nn.Module.__new__(wrapped_class(dense))


def wrap(module: nn.Module, pruned: Callable) -> None:
    """Let `pruned` run in place of a module's forward."""
    dense: Any = type(module)
    module.__class__, vars(module)["pruned"] = wrapped_class(dense), pruned


def unwrap(module: nn.Module) -> None:
    """Give a module the class and the methods back that it had, in place."""
    if isinstance(module, Wrapped):
        module.__class__ = type(module).__bases__[1]
        del vars(module)["pruned"]
    for attributes in (vars(module), module._modules):
        if isinstance(attributes.get("slimming"), Slimming):
            del attributes["slimming"]
    vars(module).pop("forward_intermediates", None)


class Slimming(nn.Module):
    """Stages after `blocks` of a backbone, 0 for its input, that keep the shares `keep` of the remaining patches, each by a
    score of its own. With `merge` the dropped patches are merged; with `shared` the images of a forward keep the same where the
    score is their saliency, which is summed.

    DeMo calls it (demo_sdtps/modeling/demo.py); for any other model it is attached to the `towers`, and knows of the forward
    under way. In place of `keep` it may leave a share `operations` of those of the dense towers. A host that knows more of its
    images overrides `votes`.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        keep: Sequence[float],
        scores: Sequence[Score],
        merge: bool = True,
        shared: bool = True,
        towers: Sequence[Tower] = (),
        operations: float | None = None,
    ):
        super().__init__()
        self.blocks, self.keep, self.merge, self.shared = tuple(blocks), keep, merge, shared
        self.scores: Any = nn.ModuleList(scores)  # which does not know the type of its modules
        self.towers, self.operations = towers, operations
        self.images: list[tuple[str, torch.Tensor]] | None = None  # None: no forward is under way
        self.begin()

    def begin(self) -> None:
        """Forget the forward before."""
        self.batches: dict[int, list[Batch]] = defaultdict(list)  # by the number of the tower
        self.losses: list[torch.Tensor] = []

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no forward under way.
        return self.__dict__ | {"images": None, "losses": [], "batches": defaultdict(list)}

    def attach(self, model: nn.Module, home: nn.Module) -> None:
        """Become `model.slimming`, in the model's mode and on its device, and wrap the model; the weights of the scores are in
        its module `home`."""
        self.to(self.towers[0].patches.weight).train(model.training)
        home.add_module("slimming", self)
        vars(model)["slimming"] = self
        wrap(model, self.run_model)
        for number, tower in enumerate(self.towers):
            wrap(tower.patches, partial(self.run_stem, number))
            for index, block in enumerate(tower.blocks):
                wrap(block, partial(self.run_block, number, index))
            if hasattr(tower.owner, "forward_intermediates"):  # timm's
                vars(tower.owner)["forward_intermediates"] = refuse_intermediates

    @property
    def reads_saliency(self) -> bool:
        return any(scorer.reads_saliency for scorer in self.scores)

    def counts(self, patches: int) -> tuple[int, ...]:
        """Patches of a grid of `patches` that each stage leaves: a share of those of the stage before, rounded up."""
        if self.operations is None:
            share_of = lambda left, share: max(1, ceil(round(left * share, 6)))  # noqa: E731
            return tuple(accumulate(self.keep, share_of, initial=patches))[1:]
        return plan_counts(self.operations, self.towers, self.blocks, self.merge, patches)

    def forward(self, number: int, values: torch.Tensor, state: State, block: Block) -> Step:
        """Stage `number` and the block after it, whose input is `values` (B, L, C): `Score.run` of its score."""
        keep = self.counts(prod(state.grid))[number]
        return self.scores[number].run(block, values, state, keep, self.merge)

    def votes(self, name: str) -> bool:
        """Whether the image `name` of a forward counts in the sum of the saliency."""
        return True

    def run_model(self, model: nn.Module, dense: Callable, args: tuple, kwargs: dict) -> Any:
        """The forward of the model, which is `dense`."""
        if self.images is not None:  # within itself
            return dense(*args, **kwargs)
        self.begin()
        self.images = find_images((args, kwargs))
        try:
            if len(self.images) > 1 and not torch.compiler.is_compiling():
                # The caller's own tensors do not become Tokens.
                alias = lambda each: each.view_as(each)  # noqa: E731
                args, kwargs = tree_map_only(torch.Tensor, alias, (args, kwargs))
            output = dense(*args, **kwargs)
            shapes = [each.shape for each in tree_leaves(output) if getattr(each, "ndim", 0) == 4]
            sides = {height for *_, height, width in shapes if height == width}
            sides -= {image.shape[3] for _, image in self.images}
            # A head may take the root of the number of patches for a side of its picture.
            areas = {(side / step) ** 2 for side in sides for step in STEPS}
            for number, tower in enumerate(self.towers):
                batches = self.batches.get(number, [])
                states = (batch.states[-1] for batch in batches)
                kept = {state.count for state in states if state.positions is not None}
                is_whole = all(batch.block == len(tower.blocks) for batch in batches)
                if self.images and not batches:
                    is_whole = tower.patches in {*model.modules()}
                if not is_whole or kept & areas:
                    raise RuntimeError(LOST)
            return output
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            # transformers compares numbers of tokens itself, and an assertion may say nothing
            others = {ValueError: "do not match", AssertionError: ""}
            about = others.get(type(error), "[Ss]hape|[Ss]ize|dimension")
            if reason != LOST and not (self.batches and search(about, reason)):
                raise
            raise UserError(
                f"{type(model).__name__} does not run where patches are left out ({reason}): what needs the whole grid, such "
                "as heads of dense prediction or attention in windows, or skips blocks (layerdrop), cannot be slimmed. If the "
                "dense model fails too, correct its arguments."
            ) from error
        finally:
            self.images = None
            self.batches.clear()

    def run_stem(
        self, number: int, stem: nn.Conv2d, dense: Callable, args: tuple, kwargs: dict
    ) -> torch.Tensor:
        """The forward of a tower's patch convolution, which begins a batch."""
        patches, (images,) = dense(*args, **kwargs), args
        # A traced graph (torch.jit) has tensors for numbers.
        grid = int(patches.shape[-2]), int(patches.shape[-1])
        score, known = partial(saliency, size=stem.kernel_size, stride=stem.stride, grid=grid), None
        if self.images is None:  # a part of the model, or the backward pass
            self.begin()
            known = images.known if isinstance(images, Tokens) else None
        if known is None and self.reads_saliency:
            known = self.total_saliency(images, score) if self.shared else score(images)
        state = State(grid, images=images, saliency=known)
        self.batches[number].append(Batch(state, images.shape[0]))
        return patches

    def total_saliency(self, images: torch.Tensor, score: Callable) -> torch.Tensor:
        """The saliency (B, N) of images; of several in a forward that are alike, the sum over those that vote."""
        alike = [each for each in self.images or [] if each[1].shape[1:] == images.shape[1:]]
        batch, counts = images.shape[0], [image.shape[0] for _, image in alike]
        # A host that stacks them has all in one batch.
        count = batch if batch in counts or not counts else counts[0]
        alike = [each for each in alike if each[1].shape[0] == count]
        voters = [image for name, image in alike if self.votes(name)]
        if len(alike) < 2 or not voters or batch % count:
            return score(images)
        total = score(torch.cat(voters)).unflatten(0, (len(voters), -1)).sum(dim=0)
        total = total.repeat(batch // count, 1)
        if all(images is not image for _, image in alike):  # in a container that is not known
            remember(images, total)
        return total

    def run_block(
        self, number: int, index: int, module: nn.Module, dense: Callable, args: tuple, kwargs: dict
    ) -> Any:
        """The forward of block `index` of a tower, which is `dense`."""
        tower = self.towers[number]
        arguments = dict(zip(tower.arguments, args, strict=False)) | kwargs
        tokens = arguments.pop(tower.arguments[0])
        batch = self.find_batch(number, index, module, tokens)
        stage = sum(before < index for before in self.blocks)
        state, shape = batch.states[stage], tuple(getattr(tokens, "shape", ()))
        outputs: list[Any] = []  # of the block: tokens, or a tuple that begins with them
        rows, length = tower.swap(tokens).shape[:2] if len(shape) == 3 else (0, 0)
        prefix = int(length) - state.count - state.extra
        room = (
            [tower.prefix]
            if tower.prefix is not None
            else range(tower.prefix_count + prod(state.grid))
        )
        # Some models lay all images one after the other, or those of several convolutions.
        if prefix not in room or rows != batch.count:
            raise UserError(
                f"{type(module).__name__} gets {shape} for a grid of {state.count} patches, but token pruning needs blocks of "
                f"tokens, (B, L, C), of B images with prefix={tower.prefix} before the patches; choose another backbone, "
                "correct this number, or turn off what drops patches beside it, such as patch dropout (timm's patch_drop_rate)."
            )

        def forward(values: torch.Tensor, **arguments: Any) -> torch.Tensor:
            outputs.append(dense(tower.swap(values), **arguments))
            return tower.swap(outputs[-1][0] if isinstance(outputs[-1], tuple) else outputs[-1])

        block, values = Block(module, forward, arguments), tower.swap(tokens)
        if index not in self.blocks:
            values = block.run(values, state)
        elif stage + 1 == len(batch.states):  # first run
            values, state, _, loss = self(stage, values, state, block)
            batch.states.append(state)
            self.losses += [] if loss is None else [loss]
        else:  # run again: keep the patches of the first run
            state = replace(state, choice=batch.states[stage + 1].positions)
            values, state, *_ = self(stage, values, state, block)
        if index + 1 == len(tower.blocks) and state.extra:
            # Not a view, which would keep the whole output.
            values = values[:, : -state.extra].contiguous()
        tokens = tower.swap(values)
        # A method inside the block may compute its parts, in place of its forward.
        output = outputs[-1] if outputs else tokens
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    def find_batch(self, number: int, index: int, module: nn.Module, tokens: torch.Tensor) -> Batch:
        """The batch whose tokens are the input of block `index` of a tower, which goes on to the next block."""
        batches = self.batches[number]
        if isinstance(tokens, Tokens):
            batch = tokens.known
            if self.images is None and any(other.block != index + 1 for other in batches):
                batches.clear()  # of another checkpointed function, which has run again
            if batch not in batches:
                batches.append(batch)
        else:
            waiting = [batch for batch in batches if batch.block == index]
            if not waiting:
                raise UserError(
                    f"{type(module).__name__}, block {index}, gets tokens whose patches slimming has not seen: it follows them "
                    "from the patch convolution through all blocks in their order. Skip no block (layerdrop), call none by "
                    "itself, slim again after the patch convolution was replaced, and name by blocks_at the blocks after it."
                )
            batch = waiting[0]
            remember(tokens, batch)
        batch.block = index + 1
        return batch


def find_images(inputs: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    """The images (B, C, H, W) of floating point in nested arguments, with their innermost names. Raises `UserError` in
    torch.fx.symbolic_trace, where there are none."""
    if isinstance(inputs, torch.fx.Proxy):
        raise UserError(NO_GRAPH.format("torch.fx.symbolic_trace"))
    if isinstance(inputs, torch.Tensor):
        return [(name, inputs)] if inputs.ndim == 4 and inputs.is_floating_point() else []
    if isinstance(inputs, (list, tuple)):
        inputs = {f"{name}{number}": value for number, value in enumerate(inputs)}
    items = inputs.items() if isinstance(inputs, Mapping) else ()
    return [image for key, value in items for image in find_images(value, str(key))]


def refuse_intermediates(*args: object, **kwargs: object) -> None:
    raise UserError(
        "features_only, forward_intermediates and get_intermediate_layers return the whole grid of several blocks, which a "
        "slimmed model does not have; call them on the dense model (vit_slim.unslim)."
    )
