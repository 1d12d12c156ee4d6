"""run.json: what a run was made with (command, seed, commit, versions, machine), how it ended, and when it was continued."""

import logging
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config.common import COMMAND
from demo_sdtps.datasets.images import left_out
from demo_sdtps.evaluation.tables import RECORD, read_run
from demo_sdtps.runtime.distributed import world_size
from demo_sdtps.runtime.errors import UserError
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.threads import threads_by_user

FINISHED = "finished"  # status of a run in run.json
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "torchvision", "timm", "transformers", "numpy", "pillow")

logger = logging.getLogger(__name__)


@contextmanager
def record_run(cfg: CfgNode, device: torch.device, epoch: int) -> Iterator[None]:
    """Context manager: write run.json at the start, and status and seconds at the end. It is separate from metrics.json, which
    depends on the seed alone. The record of a run that is continued after `epoch`, above 0, stays as it was at its start, with
    an entry for every time that it is continued."""
    path = Path(cfg.OUTPUT_DIR) / RECORD
    now = {
        "command": command(),
        **commit(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(device),
        "machine": machine(device),
    }
    record = {"status": "running", "seed": cfg.SOLVER.SEED, **now}
    if left_out:
        record["left_out"] = dict(left_out)
    if epoch:
        before = read_run(path.parent)
        _warn_of_differences(before, record)
        resumptions = [*(before.get("resumptions") or []), {"epoch": epoch, **now}]
        record = record | before | {"status": "running", "resumptions": resumptions}
        record = {name: value for name, value in record.items() if name not in ("error", "seconds")}
    started = time.perf_counter()
    write_json(path, record)
    ended: dict[str, object] = {"status": FINISHED}
    try:
        yield
    except KeyboardInterrupt:
        ended = {"status": "stopped"}
        raise
    except Exception as error:
        ended = {"status": "failed", "error": str(error)}
        raise
    finally:
        with suppress(UserError):  # on a full disk, which the checkpoint's own error has reported
            write_json(path, record | ended | {"seconds": time.perf_counter() - started})


def _warn_of_differences(before: dict, record: dict) -> None:
    """Warn where versions, or properties of the machine that affect rounding, are not those that the run started with."""
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


def restore_threads(output: Path) -> None:
    """Compute with as many threads as the run in `output` started with, unless the user has set their number: sums come out
    differently with another one. Processes of torchrun divide the cores in any case."""
    threads = (read_run(output).get("machine") or {}).get("threads") or 0
    if threads > 0 and world_size() == 1 and not threads_by_user():
        torch.set_num_threads(threads)


def command() -> str:
    """The command line of this process, quoted for a shell."""
    _, *words = sys.orig_argv
    if words and Path(words[0]).name == COMMAND:
        return shlex.join([COMMAND, *words[1:]])
    return shlex.join(["python", *words])


def commit(root: Path = ROOT) -> dict[str, str | bool | None]:
    """The commit of a checkout, and whether any file differs from it or is new; None without git or history."""
    git = ("git", "-C", str(root))
    try:
        if (
            root / ".git"
        ).exists():  # not installed, perhaps inside the repository of another project
            revision, changes = (
                subprocess.check_output([*git, *words], stderr=subprocess.DEVNULL, text=True)
                for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
            )
            return {"commit": revision.strip(), "changed": bool(changes)}
    except (OSError, subprocess.CalledProcessError):
        pass
    return {"commit": None, "changed": None}


def versions(device: torch.device) -> dict[str, str | None]:
    """Versions of Python and of the packages that affect the numbers."""
    packages: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return packages | ({"cuda": torch.version.cuda} if device.type == "cuda" else {})


def machine(device: torch.device) -> dict[str, str | int]:
    """The properties of the machine that affect rounding."""
    is_gpu = device.type == "cuda"
    return {
        "device": str(device),
        "name": torch.cuda.get_device_name(device) if is_gpu else platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "processes": world_size(),
    }
