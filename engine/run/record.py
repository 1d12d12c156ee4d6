"""What a run was made with, run.json: its command, seed, commit, versions and machine, and how it ended."""
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.files import write_json
from demo_sdtps.engine.run.stop import Stopped

if TYPE_CHECKING:
    from demo_sdtps.engine.run.resume import Resumed

ROOT = Path(__file__).resolve().parents[2]
RECORD = "run.json"
PACKAGES = ("torch", "torchvision", "timm", "transformers", "numpy", "pillow")
RUNNING, FINISHED, STOPPED, INTERRUPTED, FAILED = "running", "finished", "stopped", "interrupted", "failed"
HOW = {Stopped: STOPPED, KeyboardInterrupt: INTERRUPTED}
"""How a run ended, by what was raised; by anything else it failed."""


@contextmanager
def track_run(output: Path, cfg: CfgNode, device: torch.device, resumed: "Resumed | None" = None) -> Iterator[None]:
    """Keep run.json in `output` while the run inside goes on: status, and seconds once it has ended, well or not.

    Apart from metrics.json, which holds nothing but what the seed decides. A run that goes on keeps what was recorded when
    it began, and each time that it was continued is told.
    """
    record = {"status": RUNNING, "command": command(), "seed": cfg.SOLVER.SEED, **commit(), "versions": versions(device),
              "machine": machine(device), "started": now()}
    if resumed:
        record = continued(record, _read(output / RECORD), resumed)
    started = time.perf_counter()
    ended = {"status": FINISHED}
    write_json(output / RECORD, record)
    try:
        yield
    except BaseException as error:
        ended = {"status": HOW.get(type(error), FAILED), **({"error": str(error)} if str(error) else {})}
        _write_end(output, record, ended, started)
        raise
    _write_end(output, record, ended, started)


def continued(record: dict, before: dict, resumed: "Resumed") -> dict:
    """The record of a run that goes on: `before`, as it began, with where and with what it goes on now."""
    state = resumed.state
    entry = {"epoch": state["epoch"], "step": state["step"], "checkpoint": resumed.path.name,
             **{name: record[name] for name in ("command", "commit", "changed", "started", "versions", "machine")}}
    kept = {name: value for name, value in before.items() if name not in ("error", "seconds")}
    return record | kept | {"status": RUNNING,
                            "resumptions": [*before.get("resumptions", []), entry]}


def now() -> str:
    """The time, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def command() -> str:
    """The command line of this process, as one would type it."""
    return shlex.join(["python", *sys.argv])


def commit(root: Path = ROOT) -> dict[str, str | bool | None]:
    """The commit of a checkout, and whether its files, new ones too, differ from it; None where that cannot be told."""
    try:
        revision, changed = (_git(root, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain")))
    except (OSError, subprocess.CalledProcessError):  # no git, or a copy without history
        return {"commit": None, "changed": None}
    return {"commit": revision, "changed": bool(changed)}


def versions(device: torch.device) -> dict[str, str | None]:
    """Of Python and the packages that numbers depend on."""
    cuda = {"cuda": torch.version.cuda} if device.type == "cuda" else {}
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}, **cuda}


def machine(device: torch.device) -> dict[str, str | int]:
    """What of the machine decides how numbers are rounded."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": str(device), "name": name, "cpu": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads()}


def _write_end(output: Path, record: dict, ended: dict, started: float) -> None:
    try:
        write_json(output / RECORD, record | ended | {"seconds": time.perf_counter() - started})
    except UserError:
        if ended["status"] == FINISHED:
            raise
        # What ended the run, a full disk perhaps, is on its way to the user already.


def _read(path: Path) -> dict:
    """A run.json, empty where it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
