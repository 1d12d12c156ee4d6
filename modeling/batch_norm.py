"""BatchNorm over the batches of all processes; torch's own needs GPUs."""
import torch
import torch.distributed as dist
from torch import nn

from demo_sdtps.modeling.collectives import sum_of_all


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
