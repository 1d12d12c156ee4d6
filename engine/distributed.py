"""Training and evaluation over several processes, one per GPU or share of the CPU, as torchrun starts them.

Without torchrun there is one process, for which everything here does nothing. Every batch is the one that a single process
would have: each process computes its share, and losses, BatchNorm statistics and rankings are those of the whole.
"""
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from config import UserError
from datasets.loaders import cpu_cores
from modeling import collectives
from modeling.batch_norm import synchronise

Item = TypeVar("Item")

LAUNCH = "torchrun --nproc_per_node=K train_net.py …"


def world() -> int:
    """How many processes there are together; 1 without torchrun."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """This process's number among them."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this is the one process that writes and logs."""
    return rank() == 0


def local_rank() -> int:
    """This process's number on its machine: which GPU is its own."""
    return int(os.environ.get("LOCAL_RANK", 0))


@contextmanager
def processes() -> Iterator[None]:
    """Join the processes that torchrun started, if it did, and leave them at the end."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    # torchrun gives every process one thread; the cores of a machine are shared out instead.
    torch.set_num_threads(max(1, cpu_cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    # Features and decisions are gathered on the CPU, gradients on the GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def check_launch(wants_several: bool) -> None:
    """Raise `UserError` where MODEL.DIST_TRAIN asks for several processes and torchrun has not started them."""
    if wants_several and "WORLD_SIZE" not in os.environ:
        raise UserError(f"MODEL.DIST_TRAIN is True, but this is a single process; start several with {LAUNCH}, or set "
                        "MODEL.DIST_TRAIN to False.")


def replicated(model: nn.Module) -> nn.Module:
    """What a training step calls in place of `model`: itself, or a copy in every process whose gradients are averaged.

    BatchNorm statistics of `model` are then those of all processes together.
    """
    if world() == 1:
        return model
    synchronise(model)
    device = next(model.parameters()).device
    # In a static graph modules may go without a gradient, as SDTPS's score MLP does where nothing is dropped.
    return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None, static_graph=True)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The processes' tensors (B, …) one after the other, (world · B, …), with gradients to all of them."""
    return collectives.gather(tensor) if world() > 1 else tensor


def gathered_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` rows of a whole of which `rows` are those of this process's `share`; without gradients."""
    if world() == 1:
        return rows
    parts = [torch.empty_like(rows) for _ in range(world())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)[:count]


def share(items: Sequence[Item]) -> list[Item]:
    """This process's part of a whole: equally many in all processes, for which the last begin again with the first."""
    each = -(-len(items) // world())
    return [items[place % len(items)] for place in range(rank() * each, (rank() + 1) * each)]


def share_of_batch(batch: Sequence[Item]) -> Sequence[Item]:
    """This process's part of a batch, whose size all processes together divide."""
    each = len(batch) // world()
    return batch[rank() * each:(rank() + 1) * each]


def from_main(thing: Item) -> Item:
    """What the main process has, in every process."""
    if world() == 1:
        return thing
    things = [thing]
    dist.broadcast_object_list(things, src=0)
    return things[0]


def anywhere(is_so: bool) -> bool:
    """Whether it is so in any process."""
    if world() == 1:
        return is_so
    flag = torch.tensor(int(is_so))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)
