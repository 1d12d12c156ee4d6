"""The record of a run, run.json: command, seed, commit, versions, machine, and how the run ended."""

import logging
import platform
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.common import COMMAND
from demo_sdtps.datasets.unreadable import left_out
from demo_sdtps.evaluation.tables import read_run
from demo_sdtps.runtime.distributed import world_size
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.matmul import matmul_library
from demo_sdtps.runtime.threads import threads_by_user
from demo_sdtps.training.output import FINISHED, RECORD
from demo_sdtps.training.resume import Resumed
from demo_sdtps.training.stop import Stopped

MODULE = "demo_sdtps.commands"  # which python -m runs as COMMAND
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "torchvision", "timm", "transformers", "numpy", "pillow")
logger = logging.getLogger(__name__)


@contextmanager
def track_run(cfg: CfgNode, device: torch.device, resumed: Resumed | None) -> Iterator[None]:
    """Write run.json at the start of the context, and status and seconds at its end.

    It is separate from metrics.json, which depends on the seed alone. The record of a resumed run stays as it was at the
    start, with an entry for every resumption.
    """
    path = Path(cfg.OUTPUT_DIR) / RECORD
    record = {
        "status": "running",
        "id": secrets.token_hex(8),
        "command": command(),
        "seed": cfg.SOLVER.SEED,
        **commit(),
        "versions": versions(device),
        "machine": {**machine(device), "matmul": matmul_library(cfg)},
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    if left_out:
        record["left_out"] = dict(left_out)
    if resumed:
        record = with_resumption(record, read_run(path.parent), resumed)
    started = time.perf_counter()
    write_json(path, record)
    ended: dict[str, object] = {"status": FINISHED}
    try:
        yield
    except (Stopped, KeyboardInterrupt):
        ended = {"status": "stopped"}
        raise
    except BaseException as error:
        ended = {"status": "failed", "error": str(error)}
        raise
    finally:
        with suppress(UserError):  # on a full disk, which the checkpoint's own error has reported
            write_json(path, record | ended | {"seconds": time.perf_counter() - started})


def with_resumption(record: dict, before: dict, resumed: Resumed) -> dict:
    """The record `before` of a resumed run, with an entry for this resumption; `record` fills in what `before` lacks.

    Versions, and properties of the machine that affect rounding, are compared: a difference is a warning.
    """
    differences = [
        f"{name} {was} (now {record[section].get(name)})"
        for section in ("versions", "machine")
        for name, was in (before.get(section) or {}).items()
        if name != "device" and was is not None and was != record[section].get(name)
    ]
    if differences:
        logger.warning(
            "the run started with %s: its numbers may differ from those of an unbroken run",
            ", ".join(differences),
        )
    entry = {name: resumed.state[name] for name in ("epoch", "step")}
    entry["checkpoint"] = resumed.path.name
    for name in ("command", "commit", "changed", "started", "versions", "machine"):
        entry[name] = record[name]
    resumptions = [*(before.get("resumptions") or []), entry]
    whole = record | before | {"status": "running", "resumptions": resumptions}
    return {name: value for name, value in whole.items() if name not in ("error", "seconds")}


def restore_threads(output: Path) -> None:
    """Compute with as many threads as the run in `output` started with, unless the user has set their number: sums come out
    differently with another one. Processes of torchrun divide the cores in any case."""
    threads = (read_run(output).get("machine") or {}).get("threads") or 0
    if threads > 0 and world_size() == 1 and not threads_by_user():
        torch.set_num_threads(threads)


def mark_finished(output: Path) -> None:
    """Finish the record of a run that was killed after its last checkpoint."""
    write_json(output / RECORD, read_run(output) | {"status": FINISHED})


def command() -> str:
    """The command line of this process, quoted for a shell."""
    script, *words = sys.argv
    start = script.split() if script.startswith(f"{COMMAND} ") else ["python", script]
    if start[0] == COMMAND and ("-m", MODULE) in pairwise(sys.orig_argv):
        start = ["python", "-m", MODULE, *start[1:]]
    if Path(script).is_absolute() and sys.orig_argv[1:2] == ["-m"]:
        start = ["python", *sys.orig_argv[1:3]]
    return shlex.join([*start, *words])


def commit(root: Path = ROOT) -> dict[str, str | bool | None]:
    """The commit of a checkout, and whether any file differs from it or is new; None without git or history."""
    revision, changes = (
        git_output(root, "rev-parse", "HEAD"),
        git_output(root, "status", "--porcelain"),
    )
    if revision is None or changes is None:
        return {"commit": None, "changed": None}
    return {"commit": revision.strip(), "changed": bool(changes)}


def git_output(root: Path, *words: str) -> str | None:
    """What a command of git prints in a checkout; None where it cannot."""
    if not (root / ".git").exists():  # installed, perhaps inside the repository of another project
        return None
    try:
        return subprocess.check_output(
            ["git", "-C", str(root), *words], stderr=subprocess.DEVNULL, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(device: torch.device) -> dict[str, str | None]:
    """Versions of Python and of the packages that affect the numbers."""
    cuda = {"cuda": torch.version.cuda} if device.type == "cuda" else {}
    packages = {name: _version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages, **cuda}


def machine(device: torch.device) -> dict[str, str | int]:
    """The properties of the machine that affect rounding."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": str(device),
        "name": name,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
