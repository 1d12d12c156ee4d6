"""Training and evaluation over several processes, one per GPU or share of the CPU, as torchrun starts them.

Without torchrun there is one process, for which everything here does nothing. Every batch is the one that a single process
would have: each process computes its share, and losses, BatchNorm statistics and rankings are those of the whole.
"""
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets.loaders import cpu_cores
from demo_sdtps.modeling import collectives
from demo_sdtps.modeling.batch_norm import synchronise

Item = TypeVar("Item")

ENDED = ("closed by peer", "reset by peer", "Broken pipe", "ncclRemoteError")
"""What an exchange with a process that has ended says, of gloo and of NCCL; other errors of theirs keep their trace."""


def world_size() -> int:
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
    if launched() == 1:
        yield
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    # torchrun gives every process one thread; the cores of a machine are shared out instead.
    torch.set_num_threads(cpu_cores())
    # Features and decisions are gathered on the CPU, gradients on the GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    try:
        yield
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ENDED):
            raise
        raise UserError("Another process of this run has ended, which its own message tells the reason of.") from None
    # Not after an error: it would wait for the others, and torchrun for it, before it ends them.
    dist.destroy_process_group()


def check_launch(cfg: CfgNode) -> None:
    """Raise `UserError` where MODEL.DIST_TRAIN asks for several processes and torchrun has not started them, or where those
    that it has started cannot share a batch."""
    count = launched()
    if cfg.MODEL.DIST_TRAIN and "WORLD_SIZE" not in os.environ:
        raise UserError("MODEL.DIST_TRAIN is True, but this is a single process; start several with torchrun "
                        "--nproc_per_node=K train_net.py …, or set MODEL.DIST_TRAIN to False.")
    groups, what = cfg.SOLVER.IMS_PER_BATCH, "triplets"
    if cfg.DATALOADER.SAMPLER != "softmax":
        groups, what = groups // cfg.DATALOADER.NUM_INSTANCE, "identities (IMS_PER_BATCH / DATALOADER.NUM_INSTANCE)"
    if groups % count:
        raise UserError(f"SOLVER.IMS_PER_BATCH {cfg.SOLVER.IMS_PER_BATCH} makes batches of {groups} {what}, which {count} "
                        "processes cannot share equally; set it to a multiple.")


def check_single(what: str) -> None:
    """Raise `UserError` where torchrun has started several processes for something that one does."""
    if launched() > 1:
        raise UserError(f"torchrun has started {launched()} processes, but {what} runs in one; start it with python.")


def launched() -> int:
    """How many processes torchrun has started, joined yet or not."""
    return int(os.environ.get("WORLD_SIZE", 1))


def replicated(model: nn.Module) -> nn.Module:
    """What a training step calls in place of `model`: itself, or a copy in every process whose gradients are averaged.

    BatchNorm statistics of `model` are then those of all processes together.
    """
    if world_size() == 1:
        return model
    synchronise(model)
    device = next(model.parameters()).device
    # In a static graph modules may go without a gradient, as SDTPS's score MLP does where nothing is dropped.
    return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None, static_graph=True)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The processes' tensors (B, …) one after the other, (world · B, …), with gradients to all of them."""
    return collectives.gather(tensor) if world_size() > 1 else tensor


def all_gather_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` rows of a whole of which `rows` are those of this process's `share`; without gradients."""
    if world_size() == 1:
        return rows
    parts = [torch.empty_like(rows) for _ in range(world_size())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)[:count]


def share(items: Sequence[Item]) -> list[Item]:
    """This process's part of a whole: equally many in all processes, for which the last begin again with the first."""
    each = -(-len(items) // world_size())
    return [items[place % len(items)] for place in range(rank() * each, (rank() + 1) * each)]


def share_of_batch(batch: Sequence[Item]) -> Sequence[Item]:
    """This process's part of a batch, whose size all processes together divide."""
    each = len(batch) // world_size()
    return batch[rank() * each:(rank() + 1) * each]


def broadcast_from_main(work: Callable[[], Item]) -> Item:
    """What `work` gives, which the main process alone does, in every process."""
    if world_size() == 1:
        return work()
    things = [work() if is_main() else None]
    dist.broadcast_object_list(things, src=0)
    return things[0]


def all_gather_object(thing: Item) -> list[Item]:
    """What each process has, in their order."""
    things = [thing] * world_size()
    if world_size() > 1:
        dist.all_gather_object(things, thing)
    return things


def any_rank(*are_so: bool) -> list[bool]:
    """Whether each of these is so in any process."""
    if world_size() == 1:
        return list(are_so)
    flags = torch.tensor(are_so, dtype=torch.uint8)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return flags.bool().tolist()


def check_agreement(what: str, seen: object) -> None:
    """Raise `UserError` where the processes do not all see the same, such as those of machines with files of their own."""
    if any(other != seen for other in all_gather_object(seen)):
        raise UserError(f"The processes do not see the same: {what} differs between them; give them all the same files, on a "
                        "file system that the machines share.")


def wait_for_all() -> None:
    """Go on when all processes are here."""
    all_gather_object(None)
