"""Times of a study's variants (tools/study.py), in turns in one process: inference in float32 and a training step."""
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.benchmarks.model import CAMERAS, CLASSES, random_batch, training_step
from demo_sdtps.benchmarks.rows import in_turns
from demo_sdtps.config.scores import MASK, reads_masks
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.inference import evaluating
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.training.optim import make_optimizer

ROUNDS = 10


def seconds_of(variants: Mapping[str, CfgNode]) -> dict[str, dict[str, float]]:
    """Median seconds of "inference" and of a "training step" of each variant, on random batches of SOLVER.IMS_PER_BATCH."""
    works: dict[str, dict[str, Callable[[], object]]] = {"inference": {}, "training step": {}}
    for name, cfg in variants.items():
        torch.manual_seed(cfg.SOLVER.SEED)
        device = choose_device(cfg)
        model = make_model(cfg, CLASSES, CAMERAS).to(device)
        images, cameras, labels = random_batch(cfg, cfg.SOLVER.IMS_PER_BATCH, device)
        masks = {MASK: torch.ones(len(labels), 1, *cfg.INPUT.SIZE_TRAIN, device=device)}
        works["inference"][name] = partial(infer, model, images | (masks if reads_masks(cfg, training=False) else {}), cameras)
        step = training_step(cfg, model, make_optimizer(cfg, model), cameras, labels, choose_precision(cfg.SOLVER.AMP, device),
                             model.head_weights)
        works["training step"][name] = partial(step, images | (masks if reads_masks(cfg, training=True) else {}))
    found: dict[str, dict[str, float]] = {name: {} for name in variants}
    for what, cases in works.items():
        for name, seconds in in_turns(what, cases, ROUNDS, device).items():
            found[name][what] = seconds
    return found


def infer(model: nn.Module, images: dict[str, torch.Tensor], cameras: torch.Tensor) -> None:
    with evaluating(model):
        model(images, cameras)
