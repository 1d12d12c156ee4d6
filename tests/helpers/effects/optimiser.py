"""SOLVER: the optimiser, its groups and the schedule."""

import shlex
from functools import partial

import torch
from numeric import tolerance
from pytest import approx

from demo_sdtps.training.optim import make_optimizer, make_scheduler
from effects.base import effect, model_of

CLASSIFIER, BIAS = "heads.original.classifier.weight", "pife.reduce.RGB.1.bias"
PLAIN_SGD = tuple(
    shlex.split(
        "SOLVER.OPTIMIZER_NAME SGD SOLVER.BASE_LR 0.5 SOLVER.BIAS_LR_FACTOR 1 "
        "SOLVER.MOMENTUM 0 SOLVER.WEIGHT_DECAY 0 SOLVER.WEIGHT_DECAY_BIAS 0"
    )
)
near = partial(approx, rel=10 * tolerance(8))
"""A few operations; a step is at least a tenth of the weight."""


def step_of(cfg, name, gradient, steps=1):
    """How far the last of some steps moves a parameter whose gradient is this number everywhere, and where it was."""
    model = model_of(cfg)
    optimizer = make_optimizer(cfg, model)
    parameter = dict(model.named_parameters())[name]
    for _ in range(steps):
        before = parameter.detach().clone()
        parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    return (parameter.double() - before).detach(), before.double()


@effect(
    "SOLVER.OPTIMIZER_NAME",
    {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW},
)
def kind_of_the_optimiser(cfg):
    return type(make_optimizer(cfg, model_of(cfg)))


@effect("SOLVER.BASE_LR", {"0.5": near(0.5), "0.02": near(0.02)}, *PLAIN_SGD)
@effect("SOLVER.LARGE_FC_LR", {"False": near(0.5), "True": near(1.0)}, *PLAIN_SGD)
def step_of_a_classifier(cfg):
    return float(-step_of(cfg, CLASSIFIER, 1.0)[0].mean())


@effect("SOLVER.BIAS_LR_FACTOR", {"1": near(0.5), "3": near(1.5)}, *PLAIN_SGD)
def step_of_a_bias(cfg):
    return float(-step_of(cfg, BIAS, 1.0)[0].mean())


@effect("SOLVER.MOMENTUM", {"0": near(1.0), "0.7": near(1.7)}, *PLAIN_SGD)
def second_step_over_the_first(cfg):
    first, second = (step_of(cfg, CLASSIFIER, 1.0, steps)[0] for steps in (1, 2))
    return float(second.mean() / first.mean())


def decay_of(cfg, name):
    """What a step without gradient takes away of a parameter, over the learning rate."""
    step, before = step_of(cfg, name, 0.0)
    return float(step.norm() / before.norm()) / cfg.SOLVER.BASE_LR


@effect("SOLVER.WEIGHT_DECAY", {"0": (0.0, 0.0), "0.2": (near(0.2), 0.0)}, *PLAIN_SGD)
@effect("SOLVER.WEIGHT_DECAY_BIAS", {"0": (0.0, 0.0), "0.2": (0.0, near(0.2))}, *PLAIN_SGD)
def decay_of_a_weight_and_a_bias(cfg):
    return decay_of(cfg, CLASSIFIER), decay_of(cfg, BIAS)


@effect(
    "SOLVER.WARMUP_ITERS",
    {"0": approx(0.001 * 0.005), "20": approx(0.1 * 0.005 + 10 / 20 * 0.9 * 0.005)},
    "SOLVER.MAX_EPOCHS",
    "10",
)
def learning_rate_at_the_end(cfg):
    """The cosine's floor, or as far as the warm-up has come; the noise is over then."""
    model = model_of(cfg)
    optimizer = make_optimizer(cfg, model)
    make_scheduler(cfg, optimizer).step(cfg.SOLVER.MAX_EPOCHS)
    parameter = dict(model.named_parameters())[CLASSIFIER]
    (rate,) = (
        group["lr"]
        for group in optimizer.param_groups
        if any(parameter is other for other in group["params"])
    )
    return rate
