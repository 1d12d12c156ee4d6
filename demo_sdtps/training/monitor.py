"""What watches a training: epoch means, waiting time, losses that are no longer finite, and signals that ask it to end."""

import logging
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from demo_sdtps.config import UserError
from demo_sdtps.runtime.gpu import CPUCopy

logger = logging.getLogger(__name__)

RECENT = 5  # finite losses that the error reports, the last of which the progress bar shows
LAG = 2  # steps after which a loss is read, when a GPU has computed it

AnyBatch = TypeVar("AnyBatch")
# no SIGHUP on Windows
SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)
]


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


class LossMonitor:
    """Reading a loss on a GPU would make the CPU wait for all work before it. The loss is copied asynchronously instead and
    read `LAG` steps later; the error still names the loss's own step. `flush`, which must be called before a checkpoint is
    written, waits for all copies."""

    def __init__(self):
        self.pending: deque[tuple[int, int, CPUCopy]] = deque()
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, epoch: int, step: int, loss: torch.Tensor) -> None:
        """Add the loss of a step, counted from 1, and check that of `LAG` steps before."""
        self.pending.append((epoch, step, CPUCopy(loss)))
        self.flush(LAG)

    def flush(self, left: int = 0) -> None:
        """Check all losses but the `left` last."""
        while len(self.pending) > left:
            epoch, step, copy = self.pending.popleft()
            loss = float(copy.wait())
            if not math.isfinite(loss):
                before = ", ".join(f"{finite:.4g}" for finite in self.recent) or "none"
                raise UserError(
                    f"The loss became {loss} in epoch {epoch}, step {step} (the finite losses before it: {before}); "
                    "lower SOLVER.BASE_LR, set SOLVER.GRAD_CLIP, or set SOLVER.AMP to off."
                )
            self.recent.append(loss)


class Stopped(Exception):  # noqa: N818 (no error: the run is saved and can be resumed)
    """The run ends on request."""


@dataclass
class StopRequest:
    """`signal`: the name of the signal that asks to end, '' before; one that arrives while `is_immediate` raises `Stopped`."""

    signal: str = ""
    is_immediate: bool = False


@contextmanager
def listen() -> Iterator[StopRequest]:
    """Context manager: the first of SIGNALS is a request, and the second ends the process at once. A signal that is ignored
    (SIGHUP under nohup) remains so. `Stopped` leaves the context, of Ctrl-C as `KeyboardInterrupt`."""
    request, before = StopRequest(), {}
    # Python handles signals in its main thread only.
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: old for number, old in handlers.items() if old is not signal.SIG_IGN}
    # torchrun passes a signal on to processes that have received it themselves, and kills them after 30 s.
    second = signal.SIG_IGN if "TORCHELASTIC_RUN_ID" in os.environ else signal.SIG_DFL

    def handle(number: int, _: object) -> None:
        request.signal = signal.Signals(number).name
        for other in before:
            signal.signal(other, second)
        if request.is_immediate:
            raise Stopped

    for number in before:
        signal.signal(number, handle)
    try:
        yield request
    except Stopped:
        reason = request.signal or "a signal to another process"
        logger.info(
            f"stopped by {reason}, the run is saved; the same command with RESUME auto continues it"
        )
        if request.signal == "SIGINT":
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
