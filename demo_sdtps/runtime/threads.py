"""How many threads a command computes with, decided before torch is imported."""

import os
from pathlib import Path

THREADS = "OMP_NUM_THREADS"
OURS = "DEMO_SDTPS_THREADS"
"""The number of threads that `prepare_threads` has set, which is not the user's."""


def cpu_cores() -> int:
    """CPU cores that this process may use, by affinity and its cgroup's quota, shared with others of torchrun here."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, round(cpu_quota())) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """The cores' worth of time that a container's cgroup allows; a large number without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return max(1.0, float(quota) / float(period))
    except (OSError, ValueError):  # no cgroups, or "max"
        return 1e6


def threads_by_user() -> bool:
    """Whether the user has set the number of threads. torchrun sets 1 for each of several processes."""
    by_torchrun = int(os.environ.get("WORLD_SIZE", 1)) > 1 and os.environ.get(THREADS) == "1"
    return THREADS in os.environ and os.environ[THREADS] != os.environ.get(OURS) and not by_torchrun


def prepare_threads() -> None:
    """Set OpenMP's environment variable for this process and those it starts, where the user has not and a container's quota
    leaves fewer cores than the machine has. Sums come out differently with another number of threads."""
    if THREADS not in os.environ and round(cpu_quota()) < (os.cpu_count() or 1):
        os.environ[THREADS] = os.environ[OURS] = str(cpu_cores())
