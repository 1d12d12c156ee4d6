"""The files of a run in OUTPUT_DIR: their names, TensorBoard, and the record of a run, run.json."""

import logging
import platform
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from yacs.config import CfgNode

from demo_sdtps.config.common import COMMAND
from demo_sdtps.datasets.unreadable import left_out
from demo_sdtps.evaluation.tables import METRICS, RECORD, read_run
from demo_sdtps.runtime.distributed import world_size
from demo_sdtps.runtime.errors import UserError
from demo_sdtps.runtime.files import atomic_write, write_json
from demo_sdtps.runtime.threads import threads_by_user
from demo_sdtps.training.monitor import Stopped

logger = logging.getLogger(__name__)

LAST, PREVIOUS, BEST = "last.pth", "last.previous.pth", "best.pth"
CONFIG, LOG = "config.yml", "log.txt"
FINISHED = "finished"  # status of a run in run.json
RUN_FILES = (METRICS, LAST, PREVIOUS, BEST, RECORD, LOG, "events.out.tfevents.*", CONFIG)
"""Patterns of a run's files. config.yml is the last: a start that is killed while it removes them leaves a folder in which
RESUME auto starts the same run."""

MODULE = "demo_sdtps.commands"  # which python -m runs as COMMAND
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "torchvision", "timm", "transformers", "numpy", "pillow")

WriteScalars = Callable[[Mapping[str, float], int], None]  # writes the scalars of an epoch, by name


class Resumed(NamedTuple):
    """A run to resume: the content of its checkpoint, the file, and SOLVER.MAX_EPOCHS as it was."""

    state: Mapping
    path: Path
    epochs: int = 0

    @property
    def progress(self) -> str:
        """The progress of the checkpoint."""
        epoch, step = self.state["epoch"], self.state["step"]
        return f"epoch {epoch}" + (f" and {step} steps of epoch {epoch + 1}" if step else "")


def run_files(output: Path) -> list[Path]:
    """What is in the folder under the names of a run's files."""
    return [path for pattern in RUN_FILES for path in sorted(output.glob(pattern))]


def prepare_folder(cfg: CfgNode, last: Path | None) -> None:
    """Make OUTPUT_DIR, remove the files of an earlier run where none is resumed from the checkpoint `last`, and write
    config.yml."""
    output = Path(cfg.OUTPUT_DIR)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for file in run_files(output) if last is None else ():
            file.unlink()
    except OSError as error:
        raise UserError(
            f"OUTPUT_DIR {output} cannot be written ({error.strerror}); choose another."
        ) from None
    if last == output / PREVIOUS:
        # The next save would otherwise keep the damaged one as the previous checkpoint, in place of the good one.
        (output / LAST).unlink(missing_ok=True)
    with atomic_write(output / CONFIG) as temporary:
        temporary.write_text(cfg.dump(), encoding="utf-8")


@contextmanager
def scalar_boards(cfg: CfgNode, first: int | None) -> Iterator[WriteScalars]:
    """Writes to TensorBoard. A run that is resumed from epoch `first` on hides its
    points from there."""
    # Training alone needs it, and its import is slow.
    from torch.utils.tensorboard import SummaryWriter

    before = threading.excepthook
    # a full disk is an error of its thread, which the next call raises again
    threading.excepthook = lambda told: isinstance(told.exc_value, OSError) or before(told)
    writer = SummaryWriter(cfg.OUTPUT_DIR, purge_step=first)
    try:

        def write(scalars: Mapping[str, float], epoch: int) -> None:
            try:
                for name, value in scalars.items():
                    writer.add_scalar(name, value, epoch)
                writer.flush()  # before a checkpoint counts the epoch as done
            except OSError as error:
                raise UserError(
                    f"TensorBoard's events in {cfg.OUTPUT_DIR} cannot be written ({error.strerror}); free some space."
                ) from None

        yield write
    finally:
        with suppress(OSError):
            writer.close()
        threading.excepthook = before


@contextmanager
def track_run(cfg: CfgNode, device: torch.device, resumed: Resumed | None) -> Iterator[None]:
    """Write run.json at the start of the context, and status and seconds at its end. It is separate from metrics.json, which
    depends on the seed alone. The record of a resumed run stays as it was at the start, with an entry for every resumption."""
    path = Path(cfg.OUTPUT_DIR) / RECORD
    record = {
        "status": "running",
        "id": secrets.token_hex(8),
        "command": command(),
        "seed": cfg.SOLVER.SEED,
        **commit(),
        "versions": versions(device),
        "machine": machine(device),
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
    """The record `before` of a resumed run, with an entry for this resumption; `record` fills in what `before` lacks. Versions,
    and properties of the machine that affect rounding, are compared: a difference is a warning."""
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
    packages: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
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
