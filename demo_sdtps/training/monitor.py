"""Monitors of a training: epoch means, waiting time, and losses that are no longer finite."""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from demo_sdtps.config import UserError
from demo_sdtps.runtime.transfer import CPUCopy

RECENT = 5  # finite losses that the error reports, the last of which the progress bar shows
LAG = 2  # steps after which a loss is read, when a GPU has computed it

AnyBatch = TypeVar("AnyBatch")


@dataclass
class Meter:
    """Means over the samples of an epoch, and how long it took."""

    totals: dict[str, torch.Tensor] = field(default_factory=dict)
    count: int = 0  # samples
    seconds: float = 0.0
    waited: float = 0.0  # of them, for data

    def update(self, count: int, **totals: torch.Tensor) -> None:
        """Add a batch of `count` samples, given sums over the batch."""
        # Sums stay on the device: reading them every batch would make the CPU wait for the GPU.
        for name, total in totals.items():
            self.totals[name] = self.totals.get(name, 0.0) + total.detach()
        self.count += count

    def time(self, batches: Iterable[AnyBatch]) -> Iterator[AnyBatch]:
        """The same batches; the time until each arrives counts as waited."""
        began = time.perf_counter()
        for batch in batches:
            waited = time.perf_counter() - began
            self.waited, self.seconds = self.waited + waited, self.seconds + waited
            yield batch
            before, began = began + waited, time.perf_counter()
            self.seconds += began - before

    def means(self) -> dict[str, float]:
        """Means over the samples so far, by name; waits for a GPU."""
        return {name: float(total) / self.count for name, total in self.totals.items()}

    def speed(self) -> float:
        """Samples per second."""
        return self.count / self.seconds

    def state(self) -> dict[str, object]:
        """The input of `from_state`."""
        times = {"waited": self.waited, "seconds": self.seconds}
        return {"totals": self.totals, "seen": self.count, **times}

    @classmethod
    def from_state(cls, state: Mapping, device: torch.device) -> "Meter":
        """The meter that gave `state`, with its sums on `device`."""
        totals = {name: total.to(device) for name, total in state["totals"].items()}
        return cls(totals, state["seen"], state["seconds"], state["waited"])


class LossMonitor:
    """Reading a loss on a GPU would make the CPU wait for all work before it. The loss is copied asynchronously instead and
    read `LAG` steps later; the error still names the loss's own step. `flush`, which must be called before a checkpoint is
    written, waits for all copies.
    """

    def __init__(self):
        self.pending: deque[tuple[int, int, CPUCopy]] = deque()
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, epoch: int, step: int, loss: torch.Tensor) -> None:
        """Add the loss of a step, counted from 1, and check that of `LAG` steps before."""
        self.pending.append((epoch, step, CPUCopy(loss)))
        if len(self.pending) > LAG:
            self._check()

    def flush(self) -> None:
        """Check all losses."""
        while self.pending:
            self._check()

    def _check(self) -> None:
        epoch, step, copy = self.pending.popleft()
        loss = float(copy.wait())
        if not math.isfinite(loss):
            before = ", ".join(f"{finite:.4g}" for finite in self.recent) or "none"
            raise UserError(
                f"The loss became {loss} in epoch {epoch}, step {step} (the finite losses before it: {before}); "
                "lower SOLVER.BASE_LR, set SOLVER.GRAD_CLIP, or set SOLVER.AMP to off."
            )
        self.recent.append(loss)
