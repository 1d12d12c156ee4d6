"""Slimming of any Vision Transformer by hooks on its blocks (docs/method.md).

The forward of the model, or of a tower alone, begins a `Call`; the convolution that makes the patches begins a `Batch`, whose
state goes with its images from block to block: the i-th call of a block continues the i-th call of the block before. Before the
block after a stage a hook drops patches (stage.py), before every later one it cuts the arguments that have a row for each
position, and after the last it takes the extra tokens away. To restore is to give the whole grid after every block, which the
next hook cuts again.

- Several forwards before a backward work, as every one begins anew and nothing of the ones before is needed.
- Under gradient checkpointing (not reentrant) there is one forward for each backward: the blocks that are computed again read
  what the last forward kept, in the order in which it visited them, and an earlier forward is refused.
- nn.DataParallel is refused; DistributedDataParallel works. One thread runs a model at a time.
- A block that is called by itself is dense.
"""

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn

from demo_sdtps.modeling.modalities import Grid, split_rows
from demo_sdtps.runtime.errors import UserError
from vit_slim.call import (
    STEM,
    Batch,
    Call,
    find_images,
    is_recomputed,
    is_running,
)
from vit_slim.scores.base import Score
from vit_slim.stage import Slimming
from vit_slim.state import UNNAMED, State, cut_tokens, scatter_tokens
from vit_slim.towers import Tower, plan_counts, replace_methods

FIRST = "first"


class Slim(Slimming):
    """The stages of a model's towers, and the hooks, which are methods, so that `copy.deepcopy` copies them with the model.

    In place of `keep` the stages may leave a share `operations` of those of the dense model. `follow`: True, the saliency of
    the images of a forward is summed, and all keep the same; "first", all keep what the first keeps; False, each keeps its own.
    `names` are the modalities in the order in which the host encodes them; with `is_stacked` one call encodes all. `missing`
    ones have no vote in evaluation.
    """

    def __init__(
        self,
        towers: Sequence[Tower],
        blocks: Sequence[int],
        keep: Sequence[float],
        scores: Sequence[Score],
        merge: bool = True,
        operations: float | None = None,
        restore: bool = False,
        follow: bool | str = True,
        names: Sequence[str] = UNNAMED,
        is_stacked: bool = False,
        missing: frozenset[str] = frozenset(),
    ):
        super().__init__(blocks, keep, scores, merge, shared=bool(follow))
        self.towers, self.restore, self.follow = tuple(towers), restore, follow
        self.names, self.is_stacked, self.missing = tuple(names), is_stacked, missing
        self.operations, self.planned = operations, dict[int, tuple[int, ...]]()
        if operations is not None:
            self.counts(10_000)  # refuses what images of no size allow
        self.handles: list[Any] = []
        self.call = Call()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no forward under way.
        return self.__dict__ | {"call": Call()}

    def _replicate_for_data_parallel(self) -> Any:
        raise UserError(
            "nn.DataParallel does not run a slimmed model; use nn.parallel.DistributedDataParallel."
        )

    def counts(self, patches: int) -> tuple[int, ...]:
        if self.operations is None:
            return super().counts(patches)
        if patches not in self.planned:
            settings = self.operations, self.towers, self.blocks, self.merge
            self.planned[patches] = plan_counts(*settings, patches)
        return self.planned[patches]

    def attach(self, model: nn.Module, home: nn.Module) -> None:
        """Become `model.slimming` and add the hooks; the weights of the scores are in the module `home` of the model."""
        home.add_module("slimming", self)
        add = self.handles.append
        if home is not model:
            vars(model)["slimming"] = self
            (path,) = (name for name, module in model.named_modules() if module is home)
            rename = partial(_rename, f"{path}.slimming.")
            add(model.register_load_state_dict_pre_hook(rename))
        owners = [model.get_submodule(tower.path) for tower in self.towers]
        for module in dict.fromkeys([model, *owners]):
            is_model = module is model
            add(module.register_forward_pre_hook(partial(self.begin, is_model), with_kwargs=True))
            numbers = tuple(number for number, owner in enumerate(owners) if owner is module)
            add(module.register_forward_hook(partial(self.end, numbers), always_call=True))
        for number, (tower, owner) in enumerate(zip(self.towers, owners, strict=True)):
            add(tower.patches.register_forward_hook(partial(self.embed, number)))
            for index, block in enumerate(tower.blocks):
                keys = tuple(signature(block.forward).parameters)
                before = partial(self.before, number, index, keys)
                add(block.register_forward_pre_hook(before, with_kwargs=True))
                if self.restore or block is tower.blocks[-1]:
                    # First, so that the hooks by which a library collects outputs get the changed ones.
                    after = partial(self.after, number, index)
                    add(block.register_forward_hook(after, prepend=True))
            replace_methods(owner, self.restore)

    def begin(self, is_model: bool, module: nn.Module, args: tuple, kwargs: dict) -> Any:
        """A forward of the model or of a tower begins; the model's has no argument `foreground`."""
        masks = kwargs.get("foreground") if is_model else None
        if is_model:
            kwargs = {key: value for key, value in kwargs.items() if key != "foreground"}
        by = self.call.by
        is_new = is_model or by in (None, module) or not is_running(by)
        if is_new and not is_recomputed():
            self.call = Call(module, find_images((args, kwargs)), masks)
        return args, kwargs

    def end(self, towers: Sequence[int], module: nn.Module, args: tuple, output: Any) -> None:
        """The forward of the model or of these towers has ended, also by an error, without output."""
        if output is None and not is_recomputed():  # the model may catch it, and try again
            for number in towers:
                if self.call.batches.pop(number, None):
                    del self.call.modalities[-1:]
        if self.call.by is module and not is_recomputed():
            # With the whole grid a model may stop early; beside images that it encodes it may embed others.
            under_way = [
                batch
                for number, batches in self.call.batches.items()
                for batch in batches
                if not (self.restore if batch.next_block else number in self.call.finished)
            ]
            self.call.by = self.call.foreground = None
            self.call.images, self.call.batches = [], {}
            if under_way and output is not None:
                kind, block = type(module).__name__, under_way[0].next_block
                raise UserError(
                    f"{kind} made patches that never came to block {block}; slimming follows them through all blocks in their "
                    "order: name by blocks_at those after the patch convolution, and skip none (layerdrop)."
                )

    def embed(self, number: int, stem: nn.Conv2d, args: tuple, patches: torch.Tensor) -> None:
        """The patch convolution of a tower has made patches (B, C, rows, columns) of images."""
        images = args[0]
        if is_recomputed():
            self.call.recompute(number, STEM, images)
            return
        by = self.call.by
        if by is None or not is_running(by):  # a method of a tower is called, which has no hooks
            self.call = Call()
        call, window, batch = self.call, (stem.kernel_size, stem.stride), Batch()
        call.visit(number, STEM, batch, images)
        # A traced graph (torch.jit) has tensors for numbers.
        grid = int(patches.shape[-2]), int(patches.shape[-1])
        _check_grid(images, stem, grid)
        names, known = self._names(images), None
        rows, masks = split_rows(images, names), call.foreground_shares(images, window, names)
        if self.follow is True and not self.is_stacked and self.reads_saliency:
            known = call.shared_saliency(images, window, grid, self.names, self.absent)
        each = self.saliency(rows, window, grid) if known is None else dict.fromkeys(names, known)
        all_absent = images.new_ones(images.shape[0] // len(names), 1, dtype=torch.bool)
        missing = {name: all_absent for name in names if name in self.absent}
        suffix = self.towers[number].suffix
        batch.states += [
            State(grid, names, self.shared, rows, missing, masks, each, suffix, suffix)
        ]
        call.batches.setdefault(number, []).append(batch)

    def before(
        self,
        number: int,
        index: int,
        keys: tuple[str, ...],
        block: nn.Module,
        args: tuple,
        kwargs: dict,
    ) -> Any:
        """The input of block `index` of a tower without the tokens that the stages so far drop; `keys` are the names of the
        block's arguments."""
        tower, name = self.towers[number], "" if args else keys[0]
        tokens = kwargs[name] if name else args[0]
        self.call.current = batch = self._batch(number, index, tokens)
        if batch is None:
            return None
        stage = sum(block_before < index for block_before in self.blocks)
        _check_tokens(tokens, block)
        values, state = tower.swap(tokens), batch.states[stage]
        if index in batch.extras:
            values = cut_tokens(values, state, batch.extras[index])
        _check_prefix(values, state, tower, block)
        if index in self.blocks:
            values, state = self._run(stage, batch, values, block)
        if state.positions is None:
            return None
        kwargs = {key: state.cut(key, value) for key, value in kwargs.items()}
        # transformers gives masks, which an exported graph always has, by their place
        args = tuple(map(state.cut, [*keys, *[""] * len(args)], args))
        values = tower.swap(values)
        return (args, kwargs | {name: values}) if name else ((values, *args[1:]), kwargs)

    def after(self, number: int, index: int, block: nn.Module, args: tuple, output: Any) -> Any:
        """The output of a block of a tower without extra tokens, or with the whole grid."""
        batch, tower = self.call.current, self.towers[number]
        self.call.current = None
        if batch is None:
            return None
        stage = sum(before <= index for before in self.blocks)
        state, is_last = batch.states[stage], index + 1 == len(tower.blocks)
        if state.positions is not None:
            tokens = output[0] if isinstance(output, tuple) else output
            values, extras = self._uncut(tower.swap(tokens), state, batch, stage)
            if self.restore and not is_recomputed():
                batch.extras[index + 1] = extras
            tokens = tower.swap(values)
            output = (tokens, *output[1:]) if isinstance(output, tuple) else tokens
        if is_last and not is_recomputed():
            self.call.finished.add(number)
            under_way = self.call.batches[number]
            self.call.batches[number] = [each for each in under_way if each is not batch]
            if any(visit.batch is batch for visit in self.call.visits):
                # What is left is for the backward pass, which has a graph of its own.
                batch.grids = [without_graph(grid) for grid in batch.grids]
                batch.extras = {key: without_graph(extra) for key, extra in batch.extras.items()}
        return output

    def _uncut(
        self, values: torch.Tensor, state: State, batch: Batch, stage: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values (B, L, C) without extra tokens, and with the whole grid to restore; and the extra tokens (B, E, C)."""
        end, suffix = int(values.shape[1]) - state.extra, state.suffix
        start, patches = end - state.count, state.patches(values)
        if self.restore:
            grid = batch.grids[stage - 1].to(patches.dtype)
            patches = scatter_tokens(grid, state.places(values), patches)
        whole = torch.cat([values[:, :start], patches, values[:, end : end + suffix]], dim=1)
        # Not a view, which would keep the whole output.
        return whole, values[:, end + suffix :].clone()

    def _run(
        self, stage: int, batch: Batch, values: torch.Tensor, block: nn.Module
    ) -> tuple[torch.Tensor, State]:
        """A stage on the tokens of a batch → the remaining, and their state."""
        state, again = batch.states[stage], is_recomputed()
        if self.restore:
            grid = state.patches(values)
            if stage:
                grid = scatter_tokens(batch.grids[stage - 1], state.places(values), grid)
            batch.grids += [] if again else [grid.clone()]
        key, score = (stage, state.grid), None
        first = None if batch.leads else self.call.scores.get(key)
        if first is not None and values.shape[0] % first.shape[0] == 0:
            score = first.repeat(values.shape[0] // first.shape[0], 1)
        positions = batch.states[stage + 1].positions if again else None
        step = self(stage, values, state, block, score=score, positions=positions)
        if again:
            return step.values, batch.states[stage + 1]
        batch.states.append(step.state)
        self.call.losses += [] if step.loss is None else [step.loss]
        if self.follow == FIRST and state.names[0] not in self.absent and first is None:
            batch.leads = True
            self.call.scores[key] = torch.cat(list(step.record.score.values()))
        return step.values, step.state

    def _batch(self, number: int, index: int, values: torch.Tensor) -> Batch | None:
        """The batch whose tokens are the input of block `index`; None for a block that is called by itself."""
        if is_recomputed():
            return self.call.recompute(number, index, values)
        batches = self.call.batches.get(number, [])
        batch = next((batch for batch in batches if batch.next_block == index), None)
        if batch is not None:
            batch.next_block += 1
            self.call.visit(number, index, batch, values)
        return batch

    @property
    def absent(self) -> frozenset[str]:
        """The modalities that have no vote now."""
        return frozenset() if self.training else self.missing

    def _names(self, images: torch.Tensor) -> tuple[str, ...]:
        """The modalities that the rows of images are of."""
        if len(self.names) == 1:
            return self.names
        if not self.is_stacked:
            return (self.call.name(images, self.names),)
        present = tuple(name for name in self.names if name not in self.absent)
        batch = next((image for _, image in self.call.images), images).shape[0]
        return present if images.shape[0] == len(present) * batch else self.names


def without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf of the values of `tensor`."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _rename(path: str, module: nn.Module, weights: dict, prefix: str, *_: object) -> None:
    """Names of a checkpoint in which the scores belong to the model itself → where they are."""
    for name in [name for name in weights if name.startswith(f"{prefix}slimming.")]:
        weights[f"{prefix}{path}{name.removeprefix(f'{prefix}slimming.')}"] = weights.pop(name)


def _check_grid(images: torch.Tensor, stem: nn.Conv2d, grid: Grid) -> None:
    """Refuse a patch convolution whose patches do not stand where its kernel and steps say."""
    sides = zip(images.shape[-2:], stem.kernel_size, stem.stride, strict=True)
    expected = tuple((int(side) - kernel) // step + 1 for side, kernel, step in sides)
    if grid != expected:
        raise UserError(
            f"The patch convolution makes a grid of {grid}, but its kernel {stem.kernel_size} and stride {stem.stride} fit "
            f"{expected} times: it pads, or is not the one that makes the patches; slimming needs one without padding."
        )


def _check_tokens(tokens: Any, block: nn.Module) -> None:
    """Refuse a block of anything but tokens, such as of rows and columns, windows or several branches."""
    if not isinstance(tokens, torch.Tensor) or tokens.ndim != 3:
        kind = tuple(tokens.shape) if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise UserError(
            f"{type(block).__name__} gets {kind}, but slimming needs blocks of tokens, (B, L, C); choose another backbone."
        )


def _check_prefix(values: torch.Tensor, state: State, tower: Tower, block: nn.Module) -> None:
    """Refuse the input of a block whose tokens are not those that the grid and the tower say."""
    length = int(values.shape[1])
    prefix = length - state.extra - state.count
    if prefix < 0 or (tower.prefix is not None and prefix != tower.prefix):
        raise UserError(
            f"{type(block).__name__} gets {length} tokens where the grid has {state.count} patches, but "
            f"prefix={tower.prefix} and suffix={tower.suffix} were expected around them; correct these numbers, or turn off "
            "what drops patches beside slimming, such as patch dropout (timm's patch_drop_rate)."
        )
