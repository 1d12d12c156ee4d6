"""How many threads a command computes with, and how they wait for each other; decided before torch is imported."""

import os
import time
from pathlib import Path

THREADS, WAITING = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"
OURS = "DEMO_SDTPS_THREADS"
"""The number of threads that `prepare_threads` has set, which is not the user's."""


def cpu_cores() -> int:
    """CPU cores that this process may use, by its affinity and its cgroup's quota; processes that torchrun starts on one
    machine share them."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, round(cpu_quota())) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """The cores' worth of time that a container's cgroup (version 2 or 1) allows; a large number without a limit."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((root / "cpu" / name).read_text() for name in names)
        return max(1.0, float(quota) / float(period)) if float(quota) > 0 else 1e6
    except (OSError, ValueError):  # no cgroups, or "max"
        return 1e6


def threads_by_user() -> bool:
    """Whether the user has set the number of threads. torchrun sets 1 for each of several processes."""
    by_torchrun = int(os.environ.get("WORLD_SIZE", 1)) > 1 and os.environ.get(THREADS) == "1"
    return THREADS in os.environ and os.environ[THREADS] != os.environ.get(OURS) and not by_torchrun


def is_machine_busy(threads: int) -> bool:
    """Whether other processes leave fewer than `threads` of the machine's cores free, by the processes that want to run."""
    # one glance that finds them free is enough: what runs for a moment does not count
    for _ in range(20):
        try:
            running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
        except (OSError, ValueError, IndexError):  # not Linux
            return False
        if running + threads <= (os.cpu_count() or 1):
            return False
        time.sleep(0.01)
    return True


def prepare_threads() -> None:
    """Set OpenMP's environment variables for this process and those it starts, where the user has not. Threads of a matrix
    product wait for each other by spinning, which is fastest on an idle machine; where other processes use the cores, they take
    the time that the product needs, and a passive wait is three times as fast (docs/train.md). The number of threads stays the
    same, and so do the results: sums come out differently with another one."""
    threads = cpu_cores()
    if THREADS not in os.environ and round(cpu_quota()) < (os.cpu_count() or 1):
        os.environ[THREADS] = os.environ[OURS] = str(threads)
    is_decided = WAITING in os.environ or "GOMP_SPINCOUNT" in os.environ
    if not is_decided and is_machine_busy(threads):
        os.environ[WAITING] = "PASSIVE"
