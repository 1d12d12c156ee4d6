"""The record of a run, run.json: command, seed, commit, versions, machine, and how the run ended."""
import logging
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.files import read_json, write_json
from demo_sdtps.config.shortage import shortage
from demo_sdtps.config.threads import threads_by_user
from demo_sdtps.engine.run.output import LAST, PREVIOUS, RECORD
from demo_sdtps.engine.run.resume import Resumed
from demo_sdtps.engine.run.stop import STOP, Stopped

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "torchvision", "timm", "transformers", "numpy", "pillow")
FINISHED = "finished"
MACHINE = ("device", "name", "cpu", "threads")
KINDS = {"status": str, "command": str, "versions": dict, "machine": dict, "resumptions": list, "commit": str | None,
         "changed": bool | None, "seconds": int | float}
"""Types of the entries of run.json that are read again."""
INTERRUPTED = "interrupted"
STATUS_OF = {Stopped: "stopped", KeyboardInterrupt: INTERRUPTED}
"""Status of a run by the exception that ended it; any other is a failure."""

logger = logging.getLogger(__name__)


@contextmanager
def track_run(output: Path, cfg: CfgNode, device: torch.device, resumed: Resumed | None = None) -> Iterator[None]:
    """Write run.json in `output` at the start of the context, and status and seconds at its end.

    It is separate from metrics.json, which depends on the seed alone. The record of a resumed run stays as it was at the
    start, with an entry for every resumption.
    """
    record = {"status": "running", "command": command(), "seed": cfg.SOLVER.SEED, **commit(), "versions": versions(device),
              "machine": machine(device), "started": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    if resumed:
        before = read_record(output)
        if changed := differences(before, record):
            logger.warning("the run was begun with %s: its numbers may differ from those of an unbroken run",
                           ", ".join(f"{name} {was} (now {now})" for name, (was, now) in changed.items()))
        record = with_resumption(record, before, resumed)
    started = time.perf_counter()

    def end(status: str, error: str = "") -> None:
        ended = {"status": status, **({"error": error} if error else {}), "seconds": time.perf_counter() - started}
        write_json(output / RECORD, record | ended)

    def mark(status: str, error: str) -> None:
        with suppress(UserError):  # the error that ended the run, perhaps a full disk, is reported already
            end(status, error)

    with STOP.listening(partial(mark, INTERRUPTED)):
        write_json(output / RECORD, record)
        try:
            yield
        except BaseException as error:
            STOP.is_ending = True  # Ctrl-C does not interrupt the record
            mark(STATUS_OF.get(type(error), "failed"), shortage(error) or str(error))
            raise
        STOP.is_ending = True
        end(FINISHED)


def with_resumption(record: dict, before: dict, resumed: Resumed) -> dict:
    """The record `before` of a resumed run, with an entry for this resumption; `record` fills in what `before` lacks."""
    state = resumed.state
    entry = {"epoch": state["epoch"], "step": state["step"], "checkpoint": resumed.path.name,
             **{name: record[name] for name in ("command", "commit", "changed", "started", "versions", "machine")}}
    kept = {name: value for name, value in before.items() if name not in ("error", "seconds")}
    return record | kept | {"status": "running", "resumptions": [*before.get("resumptions", []), entry]}


def differences(before: Mapping, now: Mapping) -> dict[str, tuple[object, object]]:
    """Versions, and properties of the machine that affect rounding, that differ between two records: both values by name."""
    names = {"versions": now["versions"], "machine": ("name", "cpu", "threads")}
    held = [(name, before[part], now[part]) for part in names if isinstance(before.get(part), Mapping) for name in names[part]]
    return {name: (was[name], has[name]) for name, was, has in held if name in was and was[name] != has[name]}


def restore_threads(output: Path) -> None:
    """Compute with as many threads as the run in `output` began with, unless the user has set their number: sums come out
    differently with another one."""
    threads = read_record(output).get("machine", {}).get("threads")
    if threads and not threads_by_user():
        torch.set_num_threads(threads)


def mark_finished(resumed: Resumed) -> None:
    """Finish a run whose epochs are all done, but which was killed before it said so in run.json. Raises `UserError`."""
    output = resumed.path.parent
    record = read_record(output)
    if record and record.get("status") != FINISHED:
        if resumed.path.name == LAST:
            (output / PREVIOUS).unlink(missing_ok=True)
        write_json(output / RECORD, {name: value for name, value in record.items() if name != "error"} | {"status": FINISHED})


def command() -> str:
    """The command line of this process, quoted for a shell."""
    return shlex.join(["python", *sys.argv])


def commit(root: Path = ROOT) -> dict[str, str | bool | None]:
    """The commit of a checkout, and whether any file differs from it or is new; None without git or history."""
    if not (root / ".git").exists():  # installed, perhaps inside the repository of another project
        return {"commit": None, "changed": None}
    try:
        revision, changed = (subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout
                             for words in (("rev-parse", "HEAD"), ("status", "--porcelain")))
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "changed": None}
    return {"commit": revision.strip(), "changed": bool(changed.strip())}


def versions(device: torch.device) -> dict[str, str | None]:
    """Versions of Python and of the packages that affect the numbers."""
    cuda = {"cuda": torch.version.cuda} if device.type == "cuda" else {}
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}, **cuda}


def machine(device: torch.device) -> dict[str, str | int]:
    """The properties of the machine that affect rounding."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": str(device), "name": name, "cpu": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads()}


def read_record(folder: Path) -> dict[str, Any]:
    """The content of a run's run.json, {} without the file. Raises `UserError` where it is not as `track_run` writes it."""
    path = folder / RECORD
    if not path.exists():
        return {}
    found = read_json(path)
    if not isinstance(found, dict):
        wrong = ["content"]
    else:
        wrong = [name for name, kind in KINDS.items() if name in found and not isinstance(found[name], kind)]
        wrong = wrong or [f"machine.{name}" for name in MACHINE if name not in found.get("machine", MACHINE)] + [
            f"versions.{name}" for name, number in found.get("versions", {}).items() if not isinstance(number, str | None)]
    if wrong:
        raise UserError(f"{path} is not as training writes it (its {wrong[0]} is another); restore the file, or remove it, "
                        "which loses the run's history but no result.")
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
