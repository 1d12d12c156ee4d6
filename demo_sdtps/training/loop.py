"""The training loop of re-identification and of SEPS: it is given a run, a loader, a loss and an evaluation."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from demo_sdtps.config import UserError
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.modeling.precision import check_finite
from demo_sdtps.runtime.device import autocast, deterministic_backward
from demo_sdtps.runtime.distributed import world_size
from demo_sdtps.runtime.gpu import CPUCopy, Recording
from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.run import PART, Evaluation, Run

LAG = 2  # steps after which a loss is read, when a GPU has computed it
FLAT_TEACHER = (
    "WARNING: the losses that follow the teacher are below a hundredth of the others, so it teaches hardly anything; its "
    "logits are flat, or the model is its equal. Raise SOLVER.DISTILL_FEATURES or DISTILL_WEIGHT, or train without it."
)
SHOWN = 5  # finite losses that an error reports, the last of which the progress bar shows

logger = logging.getLogger(__name__)


class Loss(NamedTuple):
    """The mean loss of a batch, its number of samples, and sums over them of what else is recorded, by name. A name
    "loss/<part>" is a part of the loss, recorded under "losses"."""

    mean: torch.Tensor
    samples: int
    sums: Mapping[str, torch.Tensor]


def fit(
    run: Run,
    loader: DataLoader,
    loss: Callable[[Any], Loss],
    begin_epoch: Callable[[int], object],
    evaluate: Callable[[int], Evaluation],
    batches: Callable[[DataLoader], Iterator[Any]] = batches,
    can_record: bool = False,
) -> None:
    """Train the model of `run`, which has begun, to the last epoch: SOLVER.MAX_EPOCHS.

    `batches` makes an epoch's batches of `loader`; a batch has `to(device)`, and `loss` is that of a batch on the device of the
    model. `begin_epoch` sets what depends on the epoch, from 1, such as learning rates. `evaluate` is called after an epoch, 0
    for the untrained model. With `can_record` the loss and its gradients may be a CUDA graph.
    """
    solver, model, optimizers, scaler = run.cfg.SOLVER, run.model, run.optimizers, run.scaler

    def gradients(batch: Any) -> Loss:
        with autocast(run.device, run.precision):
            mean, samples, sums = loss(batch)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        with deterministic_backward():
            scaler.scale(mean).backward()
        return Loss(mean.detach(), samples, sums)

    step: Callable[[Any], Loss] = gradients
    # Not where gradients are exchanged, or scaled by what the optimiser reads back.
    if can_record and world_size() == 1 and not scaler.is_enabled():
        step = Recording(gradients)
    if run.state is None and solver.get("EVAL_UNTRAINED"):
        run.report(0, {}, evaluate(0))
    for epoch in range(run.epoch + 1, solver.MAX_EPOCHS + 1):
        begin_epoch(epoch)
        loader.batch_sampler.begin(epoch)  # type: ignore[union-attr]  # an `EpochBatchSampler`
        model.train()
        meter, title = Meter(epoch), f"epoch {epoch}/{solver.MAX_EPOCHS}"
        bar = progress(batches(loader), title, len(loader), unit="batch")
        for batch in bar:
            result = step(batch.to(run.device))
            if solver.GRAD_CLIP:
                scaler.unscale_(optimizers[0])  # the norm is that of the unscaled gradient
                clip_grad_norm_(model.parameters(), solver.GRAD_CLIP)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            meter.update(result)
            if meter.step % solver.LOG_PERIOD == 0 and meter.losses:
                bar.set_postfix_str(f"loss {meter.losses[-1]:.3f}, {meter.speed()}")
        meter.check_losses()
        check_finite(f"The weights after epoch {epoch}", model.state_dict().values())
        means = meter.means()
        terms = (f"{name.removeprefix(PART)} {value:.4g}" for name, value in means.items())
        logger.info("%s: %s, lr %.2e, %s", title, ", ".join(terms), run.rate, meter.speed())
        taught = sum(value for name, value in means.items() if name.startswith(f"{PART}distill"))
        if epoch == 1 and 0 < taught < 0.01 * (means["loss"] - taught):
            logger.warning(FLAT_TEACHER)
        is_evaluated = epoch % solver.EVAL_PERIOD == 0 or epoch == solver.MAX_EPOCHS
        run.finish_epoch(epoch, means, evaluate(epoch) if is_evaluated else None)


class Meter:
    """Means over the samples of an epoch, how long it took, and its losses, which must be finite."""

    def __init__(self, epoch: int):
        self.epoch, self.step, self.samples = epoch, 0, 0
        self.totals: dict[str, torch.Tensor] = {}
        self.began = time.perf_counter()
        self.unread: deque[tuple[int, CPUCopy]] = deque()
        self.losses: deque[float] = deque(maxlen=SHOWN)

    def update(self, loss: Loss) -> None:
        """Add the next step."""
        self.step += 1
        self.samples += loss.samples
        # Sums stay on the device: reading them every batch would make the CPU wait for the GPU.
        for name, total in {"loss": loss.mean * loss.samples, **loss.sums}.items():
            self.totals[name] = self.totals.get(name, 0.0) + total.detach()
        self.unread.append((self.step, CPUCopy(loss.mean)))
        self.check_losses(LAG)

    def check_losses(self, unread: int = 0) -> None:
        """Raise `UserError` where a loss is not finite; the last `unread` are not waited for."""
        while len(self.unread) > unread:
            step, copy = self.unread.popleft()
            loss = float(copy.wait())
            if not math.isfinite(loss):
                before = ", ".join(f"{finite:.4g}" for finite in self.losses) or "none"
                raise UserError(
                    f"The loss became {loss} in epoch {self.epoch}, step {step} (the finite losses before it: {before}); "
                    "lower SOLVER.BASE_LR, set SOLVER.GRAD_CLIP, or set SOLVER.AMP to off."
                )
            self.losses.append(loss)

    def means(self) -> dict[str, float]:
        """Means over the samples so far, by name; waits for a GPU."""
        return {name: float(total) / self.samples for name, total in self.totals.items()}

    def speed(self) -> str:
        """Samples per second."""
        return f"{self.samples / (time.perf_counter() - self.began):.0f} samples/s"
