"""What is measured while a model trains: means over an epoch."""
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch

Loaded = TypeVar("Loaded")


@dataclass
class Meter:
    """Means over an epoch, weighted by batch size, and how much of it was spent waiting for data."""

    totals: dict[str, torch.Tensor] = field(default_factory=dict)
    seen: int = 0
    waited: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def update(self, count: int, **totals: torch.Tensor) -> None:
        """Add a batch of `count` samples, by sums over it of what is averaged."""
        # Sums stay on the device: reading them every batch would make the CPU wait for the GPU.
        for name, total in totals.items():
            self.totals[name] = self.totals.get(name, 0.0) + total.detach()
        self.seen += count

    def timed(self, loaded: Iterable[Loaded]) -> Iterator[Loaded]:
        """The same batches; the time until each is there counts as waited."""
        iterator = iter(loaded)
        while True:
            asked = time.perf_counter()
            batch = next(iterator, None)
            self.waited += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def means(self) -> dict[str, float]:
        """Means so far, with samples per second ("rate") and the share of the time that was waited for data ("waited")."""
        seconds = time.perf_counter() - self.started
        return {**{name: float(total) / self.seen for name, total in self.totals.items()},
                "rate": self.seen / seconds, "waited": self.waited / seconds}

    def state(self) -> dict[str, object]:
        """What `of_state` makes an equal meter of."""
        return {"totals": self.totals, "seen": self.seen, "waited": self.waited,
                "seconds": time.perf_counter() - self.started}

    @classmethod
    def of_state(cls, state: Mapping, device: torch.device) -> "Meter":
        """The meter that `state` was taken of, its sums on `device`."""
        totals = {name: total.to(device) for name, total in state["totals"].items()}
        return cls(totals, state["seen"], state["waited"], time.perf_counter() - state["seconds"])
