"""The record of a run, run.json: command, seed, commit, versions, machine, and how the run ended."""
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.files import read_json, write_json
from demo_sdtps.config.shortage import shortage
from demo_sdtps.engine.run.output import RECORD
from demo_sdtps.engine.run.resume import Resumed
from demo_sdtps.engine.run.stop import STOP, Stopped

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "torchvision", "timm", "transformers", "numpy", "pillow")
FINISHED = "finished"
INTERRUPTED = "interrupted"
STATUS_OF = {Stopped: "stopped", KeyboardInterrupt: INTERRUPTED}
"""Status of a run by the exception that ended it; any other is a failure."""


@contextmanager
def track_run(output: Path, cfg: CfgNode, device: torch.device, resumed: Resumed | None = None) -> Iterator[None]:
    """Write run.json in `output` at the start of the context, and status and seconds at its end.

    It is separate from metrics.json, which depends on the seed alone. The record of a resumed run stays as it was at the
    start, with an entry for every resumption.
    """
    record = {"status": "running", "command": command(), "seed": cfg.SOLVER.SEED, **commit(), "versions": versions(device),
              "machine": machine(device), "started": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    if resumed:
        record = with_resumption(record, _read(output / RECORD), resumed)
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


def _read(path: Path) -> dict:
    """The content of a run.json, empty where it cannot be read."""
    found = read_json(path)
    return found if isinstance(found, dict) else {}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
