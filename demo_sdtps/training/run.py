"""A run: which one OUTPUT_DIR holds, what it writes there, and how it is continued (docs/develop.md, "Reliability"). run.json
says what a run was made with (command, seed, commit, versions, machine), how it ended, and when it was continued."""

import logging
import os
import platform
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.common import COMMAND, print_lines
from demo_sdtps.config.keys import DEMO_SCHEMA, Schema
from demo_sdtps.config.load import StoredText, flatten
from demo_sdtps.evaluation.tables import METRICS, RECORD, read_run
from demo_sdtps.modeling.checkpoints.loading import fill_model, save_checkpoint
from demo_sdtps.modeling.checkpoints.names import load_file
from demo_sdtps.runtime.device import choose_device, choose_precision, log_to, set_seed
from demo_sdtps.runtime.distributed import all_gather_object, check_equal, is_main, rank, world_size
from demo_sdtps.runtime.files import LOCK, atomic_write, lock_file, write_json
from demo_sdtps.runtime.threads import threads_by_user

LAST, BEST, CONFIG, LOG = "last.pth", "best.pth", "config.yml", "log.txt"
RUN_FILES = (METRICS, LAST, BEST, RECORD, LOG, CONFIG, "events.out.tfevents.*", ".*.part")
FINISHED = "finished"  # status of a run in run.json
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "torchvision", "timm", "transformers", "numpy", "pillow")

RESUMABLE_KEYS = {
    *("OUTPUT_DIR", "RESUME"),  # the run's folder
    *("DATASETS.ROOT_DIR", "DATASETS.CACHE"),  # `Run.begin` compares the files
    *("DATALOADER.NUM_WORKERS", "DATALOADER.TIMEOUT"),  # how data are read
    *("SOLVER.LOG_PERIOD", "SOLVER.CHECKPOINT_PERIOD"),  # what is logged and saved
    *("MODEL.DEVICE_ID", "MODEL.DIST_TRAIN"),  # which of equal GPUs, and how many
    *("TEST.WEIGHT", "MODEL.TEACHER"),  # last.pth needs no start, and has the digest of the teacher
    "SOLVER.MAX_EPOCHS",  # the learning rates follow it, which is a warning
}
"""Keys that may differ when a run is continued. But for the last, no number depends on them."""

PART = "loss/"  # prefix of the names of the loss's parts
logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """The results of an evaluation."""

    record: Mapping[str, object]  # entries of the epoch's record in metrics.json
    score: float  # the epoch with the largest is saved as best.pth
    scalars: Mapping[str, float]  # for TensorBoard
    table: str  # for the log


@contextmanager
def open_run(
    cfg: CfgNode, overwrite: bool = False, schema: Schema = DEMO_SCHEMA
) -> Iterator["Run"]:
    """Context manager: the run of `cfg` in OUTPUT_DIR, which no other command may use meanwhile, in each of the processes.
    Nothing is written before `Run.begin`. Raises `UserError` for a run there that is neither to be replaced nor continued."""
    output = Path(cfg.OUTPUT_DIR)
    with ExitStack() as files:
        if is_main():
            files.enter_context(lock_file(output / LOCK, f"OUTPUT_DIR {output}"))
        run = Run(cfg, read_last(cfg, overwrite, schema), files)
        if run.is_finished and is_main():
            # also one that was killed after its last checkpoint
            write_json(output / RECORD, read_run(output) | {"status": FINISHED})
            print_lines(
                f"The run in {output} is finished (epoch {run.epoch}); nothing is left to do."
            )
        yield run


class Run:
    """A run in OUTPUT_DIR: the `state` of last.pth, or None, the `epoch`s that are done, and the `records` of metrics.json."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]

    def __init__(self, cfg: CfgNode, state: Mapping | None, files: ExitStack):
        self.cfg, self.state, self.files = cfg, state, files
        self.output, self.device = Path(cfg.OUTPUT_DIR), choose_device(cfg)
        self.precision = choose_precision(cfg.SOLVER.AMP, self.device)
        # Only the gradients of float16 underflow; with other types the scaler does nothing.
        is_half = self.precision is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=is_half)
        self.epoch, self.best, self.records = 0, -1.0, cast(list[dict], [])
        if state:
            self.epoch, self.best = state["epoch"], state["best"]
            self.records = state["records"]
            # sums come out differently with another number of threads; processes of torchrun divide the cores in any case
            threads = (read_run(self.output).get("machine") or {}).get("threads") or 0
            if threads > 0 and world_size() == 1 and not threads_by_user():
                torch.set_num_threads(threads)

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left."""
        return self.epoch >= self.cfg.SOLVER.MAX_EPOCHS

    @property
    def rate(self) -> float:
        """The largest learning rate of the model's optimiser."""
        return max(group["lr"] for group in self.optimizers[0].param_groups)

    def begin(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        digest: str,
        notes: Iterable[str] = (),
        about: Mapping[str, object] = {},
        others: Mapping[str, nn.Module] = {},
    ) -> None:
        """Prepare OUTPUT_DIR, and set the state of last.pth where the run is continued.

        `model` is on its device, and the first of `optimizers` is the model's. `digest` is that of the data (`digest_lines`),
        which must be the same in all processes and as it was, `notes` are lines for the log, of which "WARNING: " begins a
        warning, `about` is saved in every checkpoint, and of `others`, which are trained beside the model, the state in
        last.pth alone.
        """
        self.model, self.optimizers, self.digest = model, optimizers, digest
        self.about, self.others = about, others
        check_equal(digest, "files of the data set")
        if self.state and self.state["digest"] != digest:
            raise UserError(
                f"The data, or MODEL.TEACHER, are not those that the run in {self.output} started with: files were added, "
                "removed, renamed or changed in size, or texts edited; put back what it had, or choose another OUTPUT_DIR."
            )
        all_gather_object(None)  # wait: another process may still read what is replaced
        if is_main():
            self._open_files()
        for note in notes:
            text = note.removeprefix("WARNING: ")  # the log has the level
            logger.log(logging.INFO if text == note else logging.WARNING, "%s", text)
        precision, threads = self.precision or torch.float32, torch.get_num_threads()
        logger.info("device %s, precision %s, threads: %d", self.device, precision, threads)
        if not is_main():  # processes start with equal models and draw different random numbers
            set_seed((self.cfg.SOLVER.SEED + rank()) % 2**32)
        if self.state:
            self._restore(self.state)

    def _open_files(self) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and of training alone

        self.output.mkdir(parents=True, exist_ok=True)
        # of a run that is continued what a killed process has left half-written
        unfinished = self.output.glob(".*.part")
        for file in _run_files(self.output) if self.state is None else unfinished:
            file.unlink()
        with atomic_write(self.output / CONFIG) as temporary:
            temporary.write_text(self.cfg.dump(), encoding="utf-8")
        self.files.enter_context(log_to(self.output / LOG))
        self.files.enter_context(record_run(self.cfg, self.device, self.epoch))
        # of a run that is continued the points of the epochs that follow are hidden
        first = self.epoch + 1 if self.state else None
        self.board = SummaryWriter(str(self.output), purge_step=first)
        self.files.callback(self.board.close)

    def _restore(self, state: Mapping) -> None:
        fill_model(self.model, state["model"], self.output / LAST)
        for name, module in self.others.items():
            module.load_state_dict(state[name])
        for optimizer, content in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(content)
        if state["scaler"]:  # in float16
            self.scaler.load_state_dict(state["scaler"])
        set_random_states(state["random"][rank() % len(state["random"])])
        logger.info("continuing after epoch %d", self.epoch)
        epochs = self.cfg.SOLVER.MAX_EPOCHS
        if state["epochs"] != epochs:
            logger.warning(
                f"SOLVER.MAX_EPOCHS is {epochs} and was {state['epochs']}: learning rates follow the new length, so the "
                "numbers are not those of an unbroken run."
            )

    def report(self, epoch: int, means: Mapping[str, float], evaluation: Evaluation | None) -> None:
        """Write the record of an epoch to metrics.json and TensorBoard, and its evaluation to the log."""
        record: dict[str, Any] = {"epoch": epoch}
        for name, mean in means.items():
            if name.startswith(PART):
                record.setdefault("losses", {})[name.removeprefix(PART)] = mean
            else:
                record[name] = mean
        scalars = {f"train/{name}": mean for name, mean in means.items()}
        if evaluation:
            record |= evaluation.record
            scalars |= evaluation.scalars
            logger.info("evaluation after epoch %d\n%s", epoch, evaluation.table)
        self.records.append(record)
        if is_main():
            write_json(self.output / METRICS, self.records)
            for name, value in scalars.items():
                self.board.add_scalar(name, value, epoch)
            self.board.flush()  # before a checkpoint counts the epoch as done

    def finish_epoch(
        self, epoch: int, means: Mapping[str, float], evaluation: Evaluation | None
    ) -> None:
        """Report an epoch, and save best.pth where it is the best, and last.pth by SOLVER.CHECKPOINT_PERIOD."""
        self.report(epoch, {**means, "lr": self.rate}, evaluation)
        self.epoch = epoch
        if evaluation and evaluation.score > self.best:
            self.best = evaluation.score
            if is_main():
                save_checkpoint(self.output / BEST, self.cfg, self.model, epoch, self.about)
        if epoch % self.cfg.SOLVER.CHECKPOINT_PERIOD == 0 or self.is_finished:
            self.save()
        if self.is_finished:
            logger.info("the run is in %s", self.output)

    def save(self) -> None:
        """Write last.pth, from which the run is continued. Learning rates and batches follow from the epoch."""
        state = {
            **self.about,
            "epochs": self.cfg.SOLVER.MAX_EPOCHS,
            "best": self.best,
            "records": self.records,
            "scaler": self.scaler.state_dict(),
            "digest": self.digest,
            "random": all_gather_object(random_states()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            **{name: module.state_dict() for name, module in self.others.items()},
        }
        if is_main():
            save_checkpoint(self.output / LAST, self.cfg, self.model, self.epoch, state)


def read_last(cfg: CfgNode, overwrite: bool, schema: Schema) -> Mapping | None:
    """The content of last.pth in OUTPUT_DIR where that run is continued, None to start one there. Raises `UserError` where
    another key than RESUMABLE_KEYS differs from the run's."""
    output, path = Path(cfg.OUTPUT_DIR), Path(cfg.OUTPUT_DIR, LAST)
    if cfg.RESUME != "no" and overwrite:
        raise UserError(
            f"OUTPUT_DIR {output} is replaced by --overwrite and continued by RESUME {cfg.RESUME}; leave one of them out."
        )
    places = {Path(cfg.TEST.WEIGHT).resolve(), Path(cfg.MODEL.get("TEACHER", "")).resolve()}
    own = {file.resolve() for file in (output, *_run_files(output))}
    if overwrite and (lost := places & own):
        raise UserError(
            f"--overwrite would remove {lost.pop()}, from which this run starts (TEST.WEIGHT, MODEL.TEACHER); choose another "
            "OUTPUT_DIR."
        )
    files = [] if overwrite else _run_files(output)
    if cfg.RESUME == "auto" and not path.exists():
        # one that was killed before its first checkpoint has nothing to lose
        files = files if read_run(output).get("status", FINISHED) == FINISHED else []
    if cfg.RESUME == "no" and files:
        raise UserError(
            f"OUTPUT_DIR {output} already holds a run ({files[0].name}); choose another, or pass --overwrite to replace it, or "
            "RESUME yes to continue it."
        )
    if not files and cfg.RESUME != "yes":
        return None
    try:
        state = load_file(path) if path.exists() else None
    except ValueError:
        state = None
    if not isinstance(state, Mapping) or "digest" not in state:
        raise UserError(
            f"The run in OUTPUT_DIR {output} cannot be continued: {path} is missing, damaged, of an older version, or holds "
            "weights alone; start it again with --overwrite and without RESUME, or choose another OUTPUT_DIR."
        )
    before, now = flatten(load_cfg(StoredText(path, state["config"]), (), schema)), flatten(cfg)
    for key in sorted(now):
        if key not in RESUMABLE_KEYS and before[key] != now[key]:
            raise UserError(
                f"{key} is {now[key]!r}, but the run in {path} was started with {before[key]!r}; to continue it, give the "
                "values that it has (config.yml beside it), or choose another OUTPUT_DIR."
            )
    return state


def _run_files(output: Path) -> list[Path]:
    """What is in the folder under the names of a run's files."""
    return [path for pattern in RUN_FILES for path in sorted(output.glob(pattern))]


def file_lines(root: str, paths: Iterable[str]) -> list[str]:
    """A line for each file, its path below `root` and its size; contents of images are not read."""
    return [f"{os.path.relpath(path, root)} {os.path.getsize(path)}" for path in paths]


def digest_lines(lines: Iterable[str]) -> str:
    """A digest of lines, such as `file_lines`."""
    encoded = (line.encode(errors="surrogatepass") + b"\0" for line in lines)
    return blake2b(b"".join(encoded), digest_size=16).hexdigest()


def random_states() -> dict[str, object]:
    """The states of the random generators of Python, NumPy and torch, on all devices."""
    name, keys, *rest = cast(tuple, np.random.get_state())
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_states(states: Mapping) -> None:
    """Set the random generators to the states that `random_states` gave."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["cpu"])
    torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])


@contextmanager
def record_run(cfg: CfgNode, device: torch.device, epoch: int) -> Iterator[None]:
    """Context manager: write run.json at the start, and status and seconds at the end. It is separate from metrics.json, which
    depends on the seed alone. The record of a run that is continued after `epoch`, above 0, stays as it was at its start, with
    an entry for every time that it is continued, and a warning where versions or the machine are others."""
    path = Path(cfg.OUTPUT_DIR) / RECORD
    now: dict[str, Any] = {
        "command": command(),
        **commit(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(device),
        "machine": machine(device),
    }
    record = {"status": "running", "seed": cfg.SOLVER.SEED, "start": cfg.TEST.WEIGHT, **now}
    if epoch:
        before = read_run(path.parent)
        differences = [
            f"{name} {was} (now {now[section].get(name)})"
            for section in ("versions", "machine")
            for name, was in (before.get(section) or {}).items()
            if name != "device" and was != now[section].get(name)
        ]
        if differences:
            logger.warning("numbers may differ, as the run started with %s", ", ".join(differences))
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


def command() -> str:
    """The command line of this process, quoted for a shell."""
    _, *words = sys.orig_argv
    if words and Path(words[0]).name == COMMAND:
        return shlex.join([COMMAND, *words[1:]])
    return shlex.join(["python", *words])


def commit(root: Path = ROOT) -> dict[str, str | bool | None]:
    """The commit of a checkout, and whether any file differs from it or is new; None without git or history."""
    # --git-dir: an installed package may be inside the repository of another project
    git = ("git", f"--git-dir={root / '.git'}", f"--work-tree={root}")
    try:
        revision, changes = (
            subprocess.check_output([*git, *words], stderr=subprocess.DEVNULL, text=True)
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "changed": None}
    return {"commit": revision.strip(), "changed": bool(changes)}


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
