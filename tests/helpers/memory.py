"""Peak memory of a process."""

import multiprocessing
import re
import resource
from pathlib import Path


def peak_memory(work, *arguments):
    """Peak memory in bytes of a new process that calls a top-level function; Python and torch are about 300 MB of it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_of, (work, arguments))


def _peak_of(work, arguments):
    work(*arguments)
    # On Linux ru_maxrss of a new process starts at the peak of its parent.
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    return 1024 * int(peak[1]) if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
