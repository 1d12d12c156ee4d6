"""Times of models on random batches, in turns in one process."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.datasets.loaders import Batch
from demo_sdtps.modeling.losses import total_loss
from demo_sdtps.modeling.precision import evaluating
from demo_sdtps.runtime.device import autocast
from demo_sdtps.runtime.gpu import Recording
from demo_sdtps.runtime.progress import progress

Case = TypeVar("Case", bound=Hashable)

CLASSES, CAMERAS = 171, 4  # RGBNT201's


def in_turns(
    what: str,
    cases: Mapping[Case, Callable[[], object]],
    rounds: int,
    device: str | torch.device = "cpu",
    summary: Callable[[Sequence[float]], float] = statistics.median,
    calls: int = 1,
) -> dict[Case, float]:
    """Seconds of each case until a GPU has done the work, over the rounds by `summary`; the first round is a warm-up.

    A round calls a case `calls` times and times the last call. With two, the timed call finds its weights in the caches and no
    threads of other cases, as in a process that runs one model.

    Every round runs all cases, so that other load affects all of them; torch.utils.benchmark times one case after the other.
    """
    device = torch.device(device)
    seconds: dict[Case, list[float]] = {name: [] for name in cases}
    for _ in progress(range(rounds + 1), what, unit="round"):
        for name, work in cases.items():
            for _ in range(calls - 1):
                work()
            started = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds[name].append(time.perf_counter() - started)
    return {name: summary(times[1:]) for name, times in seconds.items()}


def random_batch(cfg: CfgNode, batch: int, device: torch.device) -> Batch:
    """Random images, and cameras and labels in turns."""
    images = {
        modality: torch.randn(batch, 3, *cfg.INPUT.SIZE_TRAIN, device=device)
        for modality in cfg.MODEL.MODALITIES
    }
    number = torch.arange(batch, device=device)
    return Batch(images, labels=number % max(2, batch // 2), cameras=number % CAMERAS)


def training_step(
    cfg: CfgNode,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    precision: torch.dtype | None,
    head_weights: dict[str, float],
    is_recorded: bool = False,
) -> Callable[[Batch], None]:
    """A function of a batch that does one step, as a CUDA graph where `is_recorded`."""

    def gradients(batch: Batch) -> None:
        with autocast(batch.cameras.device, precision):
            outputs = model(batch.images, batch.cameras)
            loss, _ = total_loss(cfg, outputs, batch.labels, head_weights)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()

    compute = Recording(gradients) if is_recorded else gradients

    def step(batch: Batch) -> None:
        compute(batch)
        optimizer.step()

    return step


def infer(model: nn.Module, *inputs: Any) -> None:
    with evaluating(model):
        model(*inputs)
