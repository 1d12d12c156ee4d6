"""Training and evaluation by several processes, one per GPU or part of the CPU, started by torchrun.

In a single process gathering and reducing return what they are given. Several processes divide each batch of a single one:
losses, BatchNorm statistics and rankings are those of the whole batch.
"""

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from yacs.config import CfgNode

from demo_sdtps.runtime.errors import UserError
from demo_sdtps.runtime.threads import cpu_cores, threads_by_user

Item = TypeVar("Item")

TIMEOUT = timedelta(minutes=30)
"""Time-out of the collectives of training, and of the start of all processes."""

UNLIMITED = timedelta(days=365)
"""Time-out of the exchange of objects, in which all processes may wait for rank 0, such as while it ranks."""

_objects: list[Any] = []  # the group for the exchange of objects, on the CPU


def world_size() -> int:
    """The number of processes; 1 without torchrun."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The rank of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this is rank 0, the only one that writes and logs."""
    return rank() == 0


def local_rank() -> int:
    """The rank of this process on its machine, which is the index of its GPU."""
    return int(os.environ.get("LOCAL_RANK", 0))


@contextmanager
def init_distributed() -> Iterator[None]:
    """Context manager: the processes that torchrun started, if any, form a process group; rank 0 alone logs and warns. A
    mistake is the error of its process: torchrun ends the others."""
    if env_world_size() == 1:
        yield
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    # torchrun gives every process one thread; all cores are divided instead
    if not threads_by_user():
        torch.set_num_threads(cpu_cores())
    # Features and flags are exchanged on the CPU, gradients on the GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    _objects[:] = [dist.new_group(backend="gloo", timeout=UNLIMITED)]
    if not is_main():
        logging.disable()
        warnings.simplefilter("ignore")
    try:
        yield
        all_gather_object(None)  # all leave together: the others may still wait for rank 0
    except RuntimeError as error:
        # of gloo and NCCL; their other errors keep their trace
        if re.search("closed by peer|reset by peer|Broken pipe|ncclRemoteError", str(error)):
            raise UserError(
                "Another process of this run has ended; its own message gives the reason."
            ) from None
        raise
    # Not after an error: it would wait for the other processes, which torchrun ends only after this one.
    dist.destroy_process_group()


def check_launch(cfg: CfgNode) -> None:
    """Raise `UserError` where MODEL.DIST_TRAIN is set without torchrun, and as `check_divisible`."""
    if cfg.MODEL.DIST_TRAIN and "WORLD_SIZE" not in os.environ:
        raise UserError(
            "MODEL.DIST_TRAIN is True, but this is one process; use torchrun --nproc_per_node=K, or set it to False."
        )
    groups, what = cfg.SOLVER.IMS_PER_BATCH, "triplets"
    if cfg.DATALOADER.SAMPLER != "softmax":
        groups //= cfg.DATALOADER.NUM_INSTANCE
        what = "identities (IMS_PER_BATCH / DATALOADER.NUM_INSTANCE)"
    check_divisible(cfg, groups, what)


def check_divisible(cfg: CfgNode, groups: int, what: str) -> None:
    """Raise `UserError` where the `groups` (`what` in the sentence) of a training batch are no multiple of the world size."""
    if groups % env_world_size():
        raise UserError(
            f"SOLVER.IMS_PER_BATCH {cfg.SOLVER.IMS_PER_BATCH} makes batches of {groups} {what}, which "
            f"{env_world_size()} processes cannot divide equally; set it to a multiple."
        )


def env_world_size() -> int:
    """The number of processes that torchrun has started, with or without a process group."""
    return int(os.environ.get("WORLD_SIZE", 1))


def wrap_ddp(model: nn.Module) -> nn.Module:
    """`model` for the forward of a training step; with several processes wrapped so that gradients are averaged. The BatchNorm
    layers of `model` then compute the statistics of all processes together."""
    if world_size() == 1:
        return model
    for module in model.modules():
        if type(module) is nn.BatchNorm1d:
            module.__class__ = SyncBatchNorm1d  # its state dict stays the same
    # A static graph allows parameters without a gradient, such as SDTPS's score MLP where no token is dropped. Without
    # device_ids, arguments on the CPU, such as the lengths of captions, stay there.
    return DistributedDataParallel(model, static_graph=True)


class _Gather(torch.autograd.Function):
    """torch.distributed.nn's own goes backward by all_to_all, which gloo beside NCCL has not."""

    @staticmethod
    def forward(ctx, local: torch.Tensor) -> torch.Tensor:
        shards = [torch.empty_like(local) for _ in range(world_size())]
        dist.all_gather(shards, local)
        return torch.cat(shards)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return all_reduce(gradient).chunk(world_size())[rank()]


def all_gather(tensor: torch.Tensor) -> torch.Tensor:
    """The tensors (B, …) of all processes as (world size · B, …), with gradients to all of them."""
    return _Gather.apply(tensor.contiguous()) if world_size() > 1 else tensor


def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the tensors of all processes, which have one shape, with gradients to all of them."""
    return dist.nn.functional.all_reduce(tensor) if world_size() > 1 else tensor


def all_gather_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    """All `count` rows, given the rows of this process's `shard_for_rank`; without gradients."""
    if world_size() == 1:
        return rows
    whole = rows.new_empty(world_size() * len(rows), *rows.shape[1:])
    dist.all_gather(list(whole.chunk(world_size())), rows.contiguous())
    return whole[:count]


def shard_for_rank(items: Sequence[Item]) -> list[Item]:
    """This process's part of all items, or of a batch: equally many in each process, padded with the first items."""
    each = -(-len(items) // world_size())
    return [items[index % len(items)] for index in range(rank() * each, (rank() + 1) * each)]


def broadcast_from_main(work: Callable[[], Item]) -> Item:
    """The result of `work`, which of the processes of `init_distributed` only the main one computes, in each of them."""
    things: list = [work() if is_main() or not _objects else None]
    if _objects and world_size() > 1:
        dist.broadcast_object_list(things, src=0, group=_objects[0])
    return things[0]


def all_gather_object(thing: Item) -> list[Item]:
    """The objects of all processes, by rank."""
    things = [thing] * world_size()
    if world_size() > 1:
        dist.all_gather_object(things, thing, group=_objects[0])
    return things


def check_equal(thing: object, what: str) -> None:
    """Raise `UserError` in every process where their things differ; `what` names them in the sentence."""
    if any(other != thing for other in all_gather_object(thing)):
        raise UserError(
            f"The processes of this run see different {what}; give them the same files."
        )


class SyncBatchNorm1d(nn.BatchNorm1d):
    """BatchNorm of features (B, D), with statistics and their gradients over all processes; torch's own needs GPUs."""

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor
    momentum: float

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(B, D) → (B, D)."""
        if not self.training:
            return super().forward(features)
        with torch.autocast(features.device.type, enabled=False):
            dtype, features = features.dtype, features.float()
            count = len(features) * dist.get_world_size()
            mean = all_reduce(features.sum(dim=0)) / count
            # Not from sums of squares, which lose the variance of features far from zero.
            variance = all_reduce((features - mean).square().sum(dim=0)) / count
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * count / (count - 1), self.momentum)
            normed = (features - mean) * (variance + self.eps).rsqrt()
            return (normed * self.weight + self.bias).to(dtype)
