"""Collective operations with gradients, and BatchNorm over the batches of all processes.

torch.distributed's public operations have no gradients, and torch's SyncBatchNorm needs GPUs.
"""
import torch
import torch.distributed as dist
from torch import nn


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return _all_reduce(gradient).chunk(dist.get_world_size())[dist.get_rank()]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: torch.Tensor) -> torch.Tensor:
        return _all_reduce(own)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return _all_reduce(gradient)


def gather(own: torch.Tensor) -> torch.Tensor:
    """Tensors of all processes, each (B, …), in the order of their ranks → (world size · B, …)."""
    return _Gather.apply(own.contiguous())


def sum_of_all(own: torch.Tensor) -> torch.Tensor:
    """Sum over all processes of tensors of one shape."""
    return _Sum.apply(own)


def _all_reduce(own: torch.Tensor) -> torch.Tensor:
    total = own.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


class SyncBatchNorm1d(nn.BatchNorm1d):
    """BatchNorm of features (B, D) with mean and variance, and their gradients, over all processes' batches."""

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor
    momentum: float

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(B, D) → (B, D)."""
        if not self.training:
            return super().forward(features)
        with torch.autocast(features.device.type, enabled=False):
            given, features = features.dtype, features.float()
            count = len(features) * dist.get_world_size()
            mean = sum_of_all(features.sum(dim=0)) / count
            # Not from sums of squares, which lose the variance of features far from zero.
            variance = sum_of_all((features - mean).square().sum(dim=0)) / count
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * count / (count - 1), self.momentum)
            normed = (features - mean) * (variance + self.eps).rsqrt()
            return (normed * self.weight + self.bias).to(given)


def synchronise(model: nn.Module) -> None:
    """Turn every BatchNorm1d of `model` into a SyncBatchNorm1d, in place; its state dict stays the same."""
    for module in model.modules():
        if type(module) is nn.BatchNorm1d:
            module.__class__ = SyncBatchNorm1d
