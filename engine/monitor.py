"""Monitors of a training: epoch means, waiting time, and losses and weights that are no longer finite."""
import copy
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader

from demo_sdtps.config import UserError
from demo_sdtps.config.printing import Lines
from demo_sdtps.engine.distributed import is_main, world_size
from demo_sdtps.engine.run.state import dataset_of, sampler_of
from demo_sdtps.engine.transfer import Arrival

RECENT = 5  # finite losses that the error reports
LAG = 2  # steps after which several processes wait for the copy of a loss from a GPU
MAX_NAMED = 3  # files of a batch that the error names; log.txt lists all
ADVICE = "lower SOLVER.BASE_LR, set SOLVER.GRAD_CLIP, or set SOLVER.AMP to off."

Loaded = TypeVar("Loaded")
logger = logging.getLogger(__name__)


@dataclass
class Meter:
    """Means over the samples of an epoch, and the time that was spent waiting for data."""

    totals: dict[str, torch.Tensor] = field(default_factory=dict)
    seen: int = 0
    waited: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def update(self, count: int, **totals: torch.Tensor) -> None:
        """Add a batch of `count` samples, given sums over the batch."""
        # Sums stay on the device: reading them every batch would make the CPU wait for the GPU.
        for name, total in totals.items():
            # A mean that an epoch resumed from an older checkpoint lacks starts with the next epoch.
            if name in self.totals or not self.seen:
                self.totals[name] = self.totals.get(name, 0.0) + total.detach()
        self.seen += count

    def timed(self, loaded: Iterable[Loaded]) -> Iterator[Loaded]:
        """The same batches; the time until each arrives counts as waited."""
        iterator = iter(loaded)
        while True:
            asked = time.perf_counter()
            batch = next(iterator, None)
            self.waited += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def means(self) -> dict[str, float]:
        """Means over the samples so far, by name; waits for a GPU."""
        return Means(self).values()

    def speed(self) -> tuple[float, float]:
        """Samples per second, and the share of the time that was spent waiting for data."""
        seconds = time.perf_counter() - self.started
        return self.seen / seconds, self.waited / seconds

    def state(self) -> dict[str, object]:
        """The input of `from_state`."""
        return {"totals": self.totals, "seen": self.seen, "waited": self.waited,
                "seconds": time.perf_counter() - self.started}

    @classmethod
    def from_state(cls, state: Mapping, device: torch.device) -> "Meter":
        """The meter that gave `state`, with its sums on `device`."""
        totals = {name: total.to(device) for name, total in state["totals"].items()}
        return cls(totals, state["seen"], state["waited"], time.perf_counter() - state["seconds"])


class Means:
    """The means of a `meter` at this moment; from a GPU they arrive later."""

    def __init__(self, meter: Meter):
        self.names, self.seen = list(meter.totals), meter.seen
        totals = [total.double() for total in meter.totals.values()]
        self.arrival = Arrival(torch.stack(totals) if totals else torch.empty(0))

    def have_come(self) -> bool:
        """Whether `values` returns at once."""
        return self.arrival.has_come()

    def values(self) -> dict[str, float]:
        """By name, once they have arrived."""
        return {name: total / self.seen for name, total in zip(self.names, self.arrival.wait().tolist(), strict=True)}


class LossMonitor:
    """Raises `UserError` for the first loss that is not finite, with its step and the files of its batch.

    Reading a loss on a GPU would make the CPU wait for all work before it. The loss is copied asynchronously instead and read
    in a later step, when the copy has arrived; the error still names the loss's own step. `flush`, which must be called before
    a checkpoint is written, waits for all copies.
    """

    def __init__(self, loader: DataLoader):
        self.loader = loader
        self.pending: deque[tuple[int, int, Arrival]] = deque()
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, epoch: int, step: int, loss: torch.Tensor) -> None:
        """Add the loss of a step, counted from 1, and check those that have arrived."""
        self.pending.append((epoch, step, Arrival(loss)))
        while self.pending and self._has_arrived():
            self._check()

    def flush(self) -> None:
        """Wait for all losses and check them."""
        while self.pending:
            self._check()

    def _has_arrived(self) -> bool:
        """Whether the oldest loss can be read; several processes must all read it in the same step."""
        arrival = self.pending[0][2]
        if arrival.event is not None and world_size() > 1:
            return len(self.pending) > LAG
        return arrival.has_come()

    def _check(self) -> None:
        """Check the oldest loss, and wait for it where it has not arrived."""
        epoch, step, arrival = self.pending.popleft()
        loss = float(arrival.wait())
        if math.isfinite(loss):
            self.recent.append(loss)
            return
        files = files_of_batch(self.loader, epoch, step)
        if is_main():
            logger.error(Lines(f"the batch of epoch {epoch}, step {step}:", *files))
        before = f"the last finite losses were {', '.join(f'{loss:.4g}' for loss in self.recent)}" if self.recent else (
            "no finite loss came before")
        more = f" … ({len(files)} in all, listed in log.txt)" if len(files) > MAX_NAMED else ""
        raise UserError(f"The loss became {loss} in epoch {epoch}, step {step}, with the files "
                        f"{', '.join(files[:MAX_NAMED])}{more}; {before}; {ADVICE}")


def files_of_batch(loader: DataLoader, epoch: int, step: int) -> list[str]:
    """The files of all processes' batch number `step`, from 1, of an epoch."""
    sampler = copy.copy(sampler_of(loader))
    sampler.share = list
    sampler.begin(epoch, step - 1)
    return [file for index, _ in next(iter(sampler)) for file in dataset_of(loader).files(index)]


@torch.no_grad()
def check_weights(model: nn.Module, epoch: int) -> None:
    """Raise `UserError` for weights that are not finite: a step with a finite loss can still spoil them."""
    spoiled = [name for name, tensor in model.state_dict().items()
               if tensor.is_floating_point() and not tensor.isfinite().all()]
    if spoiled:
        raise UserError(f"The weights are no longer finite in epoch {epoch} ({len(spoiled)} tensors, the first {spoiled[0]}), "
                        f"though the losses were, so nothing is saved; {ADVICE}")
