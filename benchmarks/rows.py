"""Rows of what was measured and their tables in Markdown, the head of a record, and peak memory of a process."""

import multiprocessing
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.timing import in_turns
from demo_sdtps.evaluation.tables import markdown_table
from demo_sdtps.runtime.device import choose_precision
from demo_sdtps.runtime.threads import cpu_cores
from demo_sdtps.training.run import command, commit, machine, versions


class Row(NamedTuple):
    """Row of the table; `reference` and `ours` in `unit`, None where not measured; `ratio` is how many times better ours is."""

    what: str
    reference: float | None
    ours: float | None
    unit: str
    ratio: float | None
    target: str = ""
    met: bool | None = None


def ratio_row(
    what: str, reference: float, ours: float, at_least: float | None = None, unit: str = "s"
) -> Row:
    """Row of two costs, with a target for their ratio."""
    ratio = reference / ours
    target, met = ("", None) if at_least is None else (f"≥ {at_least:g}×", ratio >= at_least)
    return Row(what, reference, ours, unit, ratio, target, met)


def compare(
    what: str,
    reference: Callable[[], object],
    ours: Callable[[], object],
    rounds: int,
    device: torch.device,
    at_least: float | None = None,
) -> Row:
    """Row of both, timed in turns."""
    seconds = in_turns(what, {"reference": reference, "ours": ours}, rounds, device)
    return ratio_row(what, seconds["reference"], seconds["ours"], at_least)


def conditions(device: torch.device, quick: bool) -> dict:
    """What a record of measurements on `device` begins with: command, commit, versions and machine."""
    return {
        "command": command(),
        **commit(),
        "versions": versions(device),
        "quick": quick,
        "machine": {
            **machine(device),
            "cores": cpu_cores(),
            "bfloat16": choose_precision("auto", device) is torch.bfloat16,
        },
    }


def check_near(
    what: str, ours: torch.Tensor, reference: torch.Tensor, tolerance: float = 1e-4
) -> None:
    """Raise `RuntimeError` where the largest absolute difference of the results exceeds `tolerance`."""
    difference = (ours - reference).abs().max().item()
    if not difference <= tolerance:  # also for NaN
        raise RuntimeError(
            f"{what}: ours differs by {difference:.2g} from the reference, so their times cannot be compared."
        )


def peak_memory(work: Callable[..., object], *arguments) -> float:
    """Peak memory in MiB of a new process that calls a top-level function; Python and torch are about 300 MB of it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_call_and_measure, (work, arguments))


def _call_and_measure(work: Callable[..., object], arguments: tuple) -> float:
    work(*arguments)
    # Not ru_maxrss, which in a new process starts at the peak of its parent.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def benchmark_table(rows: Sequence[Row]) -> str:
    """The rows as a table, without the columns of targets where there are none."""
    width = 6 if any(row.target for row in rows) else 4
    lines = [("what", "reference", "ours", "times better", "target", "met")]
    for row in rows:
        times = (_with_unit(row.reference, row.unit), _with_unit(row.ours, row.unit))
        better = "" if row.ratio is None else f"{_digits(row.ratio)}×"
        met = {None: "", True: "yes", False: "no"}[row.met]
        lines.append((row.what, *times, better, row.target, met))
    headers, *cells = (line[:width] for line in lines)
    return markdown_table(headers, cells)


def _with_unit(value: float | None, unit: str) -> str:
    if unit == "s" and value is not None and value < 1:
        value, unit = 1000 * value, "ms"
    return "–" if value is None else f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    """Three significant digits; five for numbers just below 1, such as cosines."""
    if 0.99 < value < 1:
        return f"{value:.5f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def headline(record: dict) -> str:
    """Command, commit (where git had one), machine and versions of a record."""
    what, where = record["machine"], record["machine"]["name"]
    if what["device"] == "cpu":
        half = "with" if what["bfloat16"] else "without"
        where = f"{what['cores']} cores, {what['cpu']}, {half} bfloat16 instructions"
    versions = [f"{name} {version}" for name, version in record["versions"].items() if version]
    changed = " with changes" if record["changed"] else ""
    revision = f" at commit {record['commit'][:10]}{changed}" if record["commit"] else ""
    return f"`{record['command']}`{revision} on {where}, {what['threads']} threads; {', '.join(versions)}."


def as_report(record: dict) -> str:
    """Record of --json as Markdown: command, machine and versions, and the table."""
    return f"{headline(record)}\n\n{benchmark_table([Row(**row) for rows in record['parts'].values() for row in rows])}"
