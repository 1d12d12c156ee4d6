"""Shared parts of the benchmarks: speed rows, the head of a record, and peak memory of a process."""

import multiprocessing
import re
import resource
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.timing import in_turns
from demo_sdtps.reports.rows import Row
from demo_sdtps.runtime.device import choose_precision
from demo_sdtps.runtime.threads import cpu_cores
from demo_sdtps.training.record import command, commit, machine, versions


def speed_row(what: str, seconds: Mapping[str, float], at_least: float | None = None) -> Row:
    """Row of the seconds of 'reference' and 'ours', with a target for their ratio."""
    ratio = seconds["reference"] / seconds["ours"]
    target, met = ("", None) if at_least is None else (f"≥ {at_least:g}×", ratio >= at_least)
    return Row(what, seconds["reference"], seconds["ours"], "s", ratio, target, met)


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
    return speed_row(what, seconds, at_least)


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


def peak_memory(work: Callable[..., object], *arguments) -> int:
    """Peak memory in bytes of a new process that calls a top-level function; Python and torch are about 300 MB of it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_call_and_measure, (work, arguments))


def _call_and_measure(work: Callable[..., object], arguments: tuple) -> int:
    work(*arguments)
    # On Linux ru_maxrss of a new process starts at the peak of its parent.
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    return 1024 * int(peak[1]) if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
