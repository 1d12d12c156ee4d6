"""What the parts of tools/benchmark.py share: a row of its table, timing in turns, and the memory of a process."""
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from config.progress import progress

Case = TypeVar("Case", bound=Hashable)


class Row(NamedTuple):
    """One line of the table: `reference` and `ours` are measured in `unit`, None where there is nothing to measure."""

    what: str
    reference: float | None
    ours: float
    unit: str
    ratio: float | None
    """How many times better ours is."""
    target: str = ""
    met: bool | None = None


def speed_row(what: str, seconds: Mapping[str, float], at_least: float | None = None) -> Row:
    """A row of the seconds of 'reference' and 'ours', whose ratio is to be `at_least` so much."""
    ratio = seconds["reference"] / seconds["ours"]
    target = {} if at_least is None else {"target": f"≥ {at_least:g}×", "met": ratio >= at_least}
    return Row(what, seconds["reference"], seconds["ours"], "s", ratio, **target)


def in_turns(what: str, cases: Mapping[Case, Callable[[], object]], rounds: int,
             device: str | torch.device = "cpu") -> dict[Case, float]:
    """Median seconds of every case, by its name.

    The cases run one after the other in every round, so that a busy moment of the machine falls on all of them; a first
    round warms up and is not counted.
    """
    device = torch.device(device)
    seconds = {name: [] for name in cases}
    for _ in progress(range(rounds + 1), what, unit="round"):
        for name, work in cases.items():
            started = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def peak_memory(work: Callable[..., object], *arguments) -> int:
    """The most bytes that a new process had in memory which did `work(*arguments)`, a function of a module's top level.

    Everything counts: Python and torch themselves are about 300 MB of it.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_of, (work, arguments))


def _peak_of(work: Callable[..., object], arguments: tuple) -> int:
    work(*arguments)
    # On Linux ru_maxrss of a new process starts at its parent's peak.
    for line in Path("/proc/self/status").read_text().splitlines() if sys.platform == "linux" else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
