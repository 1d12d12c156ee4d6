"""What a run was made with, run.json: its command, seed, commit, versions and machine, and how it ended."""
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

import torch
from yacs.config import CfgNode

from config.files import write_json

ROOT = Path(__file__).resolve().parent.parent
RECORD = "run.json"
PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")
RUNNING, FINISHED, INTERRUPTED, FAILED = "running", "finished", "interrupted", "failed"


@contextmanager
def recorded(output: Path, cfg: CfgNode, device: torch.device) -> Iterator[None]:
    """Keep run.json in `output` while the run inside goes on: status, and seconds once it has ended, well or not.

    Apart from metrics.json, which holds nothing but what the seed decides.
    """
    record = {"status": RUNNING, "command": command(), "seed": cfg.SOLVER.SEED, **commit(), "versions": versions(device),
              "machine": machine(device), "started": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    started = time.perf_counter()
    ended = {"status": FINISHED}
    write_json(output / RECORD, record)
    try:
        yield
    except BaseException as error:
        ended = {"status": INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED, "error": str(error)}
        raise
    finally:
        write_json(output / RECORD, record | ended | {"seconds": time.perf_counter() - started})


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


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
