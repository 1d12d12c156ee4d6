"""What the parts of benchmarks/run.py share: a row of its table, timing in turns, and the memory of a process."""
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from demo_sdtps.config.progress import progress

Case = TypeVar("Case", bound=Hashable)


class Row(NamedTuple):
    """One line of the table: `reference` and `ours` are measured in `unit`, None where there is nothing to measure."""

    what: str
    reference: float | None
    ours: float | None
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


def as_markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table; where there is no target, the last two columns are empty."""
    lines = [("what", "reference", "ours", "times better", "target", "met"), ("---",) * 6]
    for row in rows:
        lines.append((row.what, _with_unit(row.reference, row.unit), _with_unit(row.ours, row.unit),
                      "" if row.ratio is None else f"{_digits(row.ratio)}×", row.target,
                      {None: "", True: "yes", False: "no"}[row.met]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _with_unit(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "s" and value < 1:
        value, unit = 1000 * value, "ms"
    return f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    """Three digits, or more before the point; a number without unit just below 1, such as a cosine, has five."""
    if 0.99 < value < 1:
        return f"{value:.5f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def check_equal(what: str, ours: torch.Tensor, reference: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Raise `RuntimeError` where two sides that are to be timed do not compute the same (largest difference, absolute)."""
    difference = (ours - reference).abs().max().item()
    if not difference <= tolerance:  # not a number is not below it either
        raise RuntimeError(f"{what}: ours differs by {difference:.2g} from the reference, so their times cannot be compared.")


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
