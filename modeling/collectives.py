"""Collective operations with gradients, which those of torch.distributed's public interface do not have."""
import torch
import torch.distributed as dist


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return _summed(gradient).chunk(dist.get_world_size())[dist.get_rank()]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: torch.Tensor) -> torch.Tensor:
        return _summed(own)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return _summed(gradient)


def gather(own: torch.Tensor) -> torch.Tensor:
    """Tensors of all processes, each (B, …), in the order of their ranks → (world size · B, …)."""
    return _Gather.apply(own.contiguous())


def sum_of_all(own: torch.Tensor) -> torch.Tensor:
    """Sum over all processes of tensors of one shape."""
    return _Sum.apply(own)


def _summed(own: torch.Tensor) -> torch.Tensor:
    total = own.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
