"""Processes that torchrun started, as one: a mistake in one of them ends all, and one of each machine reads what all need.

In a single process the functions here add nothing to the work that they are given.
"""
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from demo_sdtps.config import UserError
from demo_sdtps.config.printing import print_error
from demo_sdtps.engine.distributed import EXCHANGE, all_gather_object, any_rank, is_main, local_rank, rank, world_size

Item = TypeVar("Item")
Model = TypeVar("Model", bound=nn.Module)

RANDOM_STATE = "random state"  # beside the names of a model's tensors, which have no blank


@contextmanager
def first_on_machine() -> Iterator[None]:
    """Inside, one process of each machine is ahead of its others, which find in a cache what it has computed."""
    if local_rank():
        all_gather_object(None)
    yield
    if not local_rank():
        all_gather_object(None)


def end_all(refused: str) -> None:
    """Raise `refused`, if any, as `UserError`; several processes all end with code 2, and the main one reports it."""
    if refused and world_size() == 1:
        raise UserError(refused)
    if refused:
        if is_main():
            print_error(refused)
        # torchrun kills all processes after the end of the first, which must not be before the report.
        all_gather_object(None)
        sys.exit(2)


@contextmanager
def ending_together() -> Iterator[None]:
    """Inside, a `UserError` of any process ends all by `end_all`, which is reported once.

    All processes enter and leave it. What they exchange inside is by further contexts of this kind, or before any of them can
    raise.
    """
    refused = ""
    try:
        yield
    except UserError as error:
        if world_size() == 1:
            raise
        refused = error.args[0]
    end_all(next(filter(None, all_gather_object(refused)), ""))


def fetched(work: Callable[[], Item]) -> Item:
    """The result of `work` in every process: one of each machine downloads, and then its others find the cache.

    Where it raises `UserError` in one process, all end by `end_all`.
    """
    things: list[Item] = []
    for is_first in (True, False):
        with ending_together():
            if is_first == (not local_rank()):
                things.append(work())
    return things[0]


def once_per_machine(read: Callable[[], Item]) -> Item:
    """What `read` gives in every process: one of each machine reads and passes it on, tensors on the CPU in lists, tuples and
    dictionaries one by one.

    Where it raises `UserError` in one process, all end by `end_all`.
    """
    if world_size() == 1:
        return read()
    leaves: list = []
    things: list = [None]
    with ending_together():
        if not local_rank():
            leaves, structure = tree_flatten(read())
            sent = [_Like(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            things = [(sent, structure)]
    first = rank() - local_rank()  # torchrun numbers the processes of a machine one after the other
    machine: Any = dist.new_group(list(range(first, first + int(os.environ.get("LOCAL_WORLD_SIZE", 1)))), backend="gloo",
                                  timeout=EXCHANGE, use_local_synchronization=True)
    dist.broadcast_object_list(things, first, machine)
    found, structure = things[0]
    for place, leaf in enumerate(found):
        if isinstance(leaf, _Like):
            found[place] = leaves[place].contiguous() if leaves else torch.empty(leaf.shape, dtype=leaf.dtype)
            dist.broadcast(found[place].reshape(-1).view(torch.uint8), first, machine)  # gloo does not know every type
    return tree_unflatten(found, structure)


class _Like(NamedTuple):
    """In place of a tensor that is passed on by itself."""

    shape: torch.Size
    dtype: torch.dtype


def read_once(make: Callable[[bool], tuple[Model, str]]) -> tuple[Model, str]:
    """A model with pretrained weights, and a report of their origin, in every process; one of each machine reads the weights.

    That one calls `make(True)`, the others `make(False)`, which gives the same model without reading weights. All go on with
    the weights and the state of torch's random generator of the first. Raises as `once_per_machine`.
    """
    made: list[Model] = []

    def read() -> tuple[dict[str, torch.Tensor], str]:
        model, report = make(True)
        made.append(model)
        return {**model.state_dict(), RANDOM_STATE: torch.get_rng_state()}, report

    weights, report = once_per_machine(read)
    if not made:
        made.append(make(False)[0])
        torch.set_rng_state(weights.pop(RANDOM_STATE))
        made[0].load_state_dict(weights)
    return made[0], report


def in_step(items: Iterable[Item]) -> Iterator[Item]:
    """`items`, of which every process has equally many; before each, those of several machines exchange a sign of life.

    torchrun ends the processes of a machine of which one has died; those of another machine notice it in this exchange.
    """
    is_alone = int(os.environ.get("GROUP_WORLD_SIZE", 1)) == 1
    for item in items:
        if not is_alone:
            any_rank(True)
        yield item


def dealt(items: Sequence[Item]) -> Iterator[Item]:
    """This process's part `items[rank::world size]` of all items, `in_step` with the other processes."""
    for turn in in_step(range(0, len(items), world_size())):
        yield from items[turn:turn + world_size()][rank():rank() + 1]


class _OtherError(Exception):
    """Another process has raised `UserError`."""


def in_unequal_steps(work: Callable[[Callable[[], None]], None]) -> None:
    """`work(step)`, which may be of another length in each process, calls `step` often and exchanges nothing else.

    A process thus notices within a step that another has died. Where `work` raises `UserError` in one, all end by `end_all`.
    """
    def step() -> None:
        if any_rank(True, False)[1]:
            raise _OtherError

    refused, failed = "", False
    try:
        work(step)
    except _OtherError:
        failed = True
    except UserError as error:
        refused = error.args[0]
    while not failed:
        is_going_on, failed = any_rank(False, bool(refused))
        if not is_going_on and not failed:
            return
    end_all(next(filter(None, all_gather_object(refused))))


def check_agreement(seen: Mapping[str, object], advice: str) -> None:
    """End every process by `end_all` where an entry of `seen` differs between them, such as on machines without a shared file
    system. The main one reports the first entry that differs, both values and ranks; `advice` ends its sentence."""
    found = all_gather_object({name: str(value) for name, value in seen.items()})
    for name in dict.fromkeys(name for own in found for name in own):
        values = [own.get(name, "absent") for own in found]
        other = next((place for place, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            end_all(f"The processes of this run do not agree: {name} is {values[0]} in rank 0 and {values[other]} in rank "
                    f"{other}; {advice}.")
