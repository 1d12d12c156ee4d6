"""Shared parts of the benchmarks: rows of the table, the record and its report, and peak memory of a process."""
import multiprocessing
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from demo_sdtps.runtime.device import choose_precision
from demo_sdtps.runtime.threads import cpu_cores
from demo_sdtps.training.record import command, commit, machine, versions


class Row(NamedTuple):
    """Row of the table; `reference` and `ours` in `unit`, None where not measured; `ratio` is how many times better ours is."""

    what: str
    reference: float | None
    ours: float | None
    unit: str
    ratio: float | None
    target: str = ""
    met: bool | None = None


def speed_row(what: str, seconds: Mapping[str, float], at_least: float | None = None) -> Row:
    """Row of the seconds of 'reference' and 'ours', with a target for their ratio."""
    ratio = seconds["reference"] / seconds["ours"]
    target, met = ("", None) if at_least is None else (f"≥ {at_least:g}×", ratio >= at_least)
    return Row(what, seconds["reference"], seconds["ours"], "s", ratio, target, met)


def as_markdown(rows: Sequence[Row]) -> str:
    """The rows as a table, without the columns of targets where there are none."""
    lines = [("what", "reference", "ours", "times better", "target", "met"), ("---",) * 6]
    for row in rows:
        lines.append((row.what, _with_unit(row.reference, row.unit), _with_unit(row.ours, row.unit),
                      "" if row.ratio is None else f"{_digits(row.ratio)}×", row.target,
                      {None: "", True: "yes", False: "no"}[row.met]))
    width = 6 if any(row.target for row in rows) else 4
    return "\n".join(f"| {' | '.join(line[:width])} |" for line in lines)


def _with_unit(value: float | None, unit: str) -> str:
    if unit == "s" and value is not None and value < 1:
        value, unit = 1000 * value, "ms"
    return "–" if value is None else f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    """Three significant digits; five for numbers just below 1, such as cosines."""
    if 0.99 < value < 1:
        return f"{value:.5f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def about(device: torch.device, quick: bool) -> dict:
    """What a record of measurements on `device` begins with: command, commit, versions and machine."""
    return {"command": command(), **commit(), "versions": versions(device), "quick": quick,
            "machine": {**machine(device), "cores": cpu_cores(),
                        "bfloat16": choose_precision("auto", device) is torch.bfloat16}}


def headline(record: dict) -> str:
    """Command, machine and versions of a record."""
    made, what = record["versions"], record["machine"]
    half = "with" if what["bfloat16"] else "without"
    where = f"{what['cores']} cores, {what['cpu']}, {half} bfloat16 instructions" if what["device"] == "cpu" else what["name"]
    return (f"`{record['command']}` on {where}, {what['threads']} threads; "
            + ", ".join(f"{name} {version}" for name, version in made.items() if version) + ".")


def as_report(record: dict) -> str:
    """Record of --json as Markdown: command, machine and versions, and the table."""
    return f"{headline(record)}\n\n{as_markdown([Row(**row) for rows in record['parts'].values() for row in rows])}"


def check_equal(what: str, ours: torch.Tensor, reference: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Raise `RuntimeError` where the largest absolute difference of the results exceeds `tolerance`."""
    difference = (ours - reference).abs().max().item()
    if not difference <= tolerance:  # also for NaN
        raise RuntimeError(f"{what}: ours differs by {difference:.2g} from the reference, so their times cannot be compared.")


def peak_memory(work: Callable[..., object], *arguments) -> int:
    """Peak memory in bytes of a new process that calls a top-level function; Python and torch are about 300 MB of it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_of, (work, arguments))


def _peak_of(work: Callable[..., object], arguments: tuple) -> int:
    work(*arguments)
    # On Linux ru_maxrss of a new process starts at the peak of its parent.
    for line in Path("/proc/self/status").read_text().splitlines() if sys.platform == "linux" else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
