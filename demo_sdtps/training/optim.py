"""Optimisers, parameter groups and the learning-rate schedule (docs/method.md)."""

from collections import defaultdict

import torch
from timm.scheduler import CosineLRScheduler
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.modeling.demo import DeMo


def parameter_groups(cfg: CfgNode, model: DeMo) -> list[dict]:
    """Trainable parameters by (learning rate, weight decay): few groups, so that fused updates process many tensors at once."""
    solver, backbone = cfg.SOLVER, model.backbone
    backbone_prefix = "backbone.vit." if backbone.has_new_camera_embedding else "backbone."

    def rate_and_decay(name: str) -> tuple[float, float]:
        is_bias = name.endswith("bias")
        rate = solver.BASE_LR * solver.BIAS_LR_FACTOR if is_bias else solver.BASE_LR
        if solver.LARGE_FC_LR and ".classifier." in name:
            rate = 2 * solver.BASE_LR
        if name.startswith(backbone_prefix):
            rate = backbone.learning_rate(solver.BASE_LR)
        return rate, solver.WEIGHT_DECAY_BIAS if is_bias else solver.WEIGHT_DECAY

    groups = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[rate_and_decay(name)].append(parameter)
    return [
        {"params": parameters, "lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]


def make_optimizer(cfg: CfgNode, model: DeMo) -> torch.optim.Optimizer:
    """SOLVER.OPTIMIZER_NAME over `parameter_groups`."""
    # torch's fused SGD starts its momentum from uninitialised memory where a GradScaler skips the first step.
    name = cfg.SOLVER.OPTIMIZER_NAME
    extra = {"momentum": cfg.SOLVER.MOMENTUM} if name == "SGD" else {"fused": True}
    return getattr(torch.optim, name)(parameter_groups(cfg, model), **extra)


def make_center_optimizer(cfg: CfgNode, center_losses: nn.ModuleList) -> torch.optim.Optimizer:
    """SGD without momentum over the centers at SOLVER.CENTER_LR."""
    # Centers follow the unweighted loss: dividing the learning rate undoes CENTER_LOSS_WEIGHT in the gradient.
    rate = cfg.SOLVER.CENTER_LR / cfg.SOLVER.CENTER_LOSS_WEIGHT
    return torch.optim.SGD(center_losses.parameters(), lr=rate)


def make_scheduler(cfg: CfgNode, optimizer: torch.optim.Optimizer) -> CosineLRScheduler:
    """timm's cosine with warm-up and noise; call `step(epoch)` before each epoch from 1.

    The floor and the start of the warm-up are absolute, the same for every group, as in the published runs: CLIP's backbone
    therefore starts above its final rate. Its last epoch trains at the floor, but not the only one.
    """
    solver = cfg.SOLVER
    return CosineLRScheduler(
        optimizer,
        t_initial=max(2, solver.MAX_EPOCHS),
        lr_min=0.001 * solver.BASE_LR,
        warmup_t=solver.WARMUP_ITERS,
        warmup_lr_init=0.1 * solver.BASE_LR,
        warmup_prefix=False,
        cycle_limit=1,
        t_in_epochs=True,
        noise_range_t=(0, solver.MAX_EPOCHS),
        noise_pct=0.67,
        noise_std=1.0,
        noise_seed=42,
    )
