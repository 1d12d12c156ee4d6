"""A run: the files in OUTPUT_DIR, its progress, and how it starts, is saved, resumed and stopped (docs/develop.md)."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.schema import Schema
from demo_sdtps.datasets.loaders import epoch_sampler
from demo_sdtps.evaluation.tables import METRICS, RECORD, read_run
from demo_sdtps.modeling.checkpoints.loading import fill_model, save_checkpoint
from demo_sdtps.modeling.inference import check_finite
from demo_sdtps.runtime.device import choose_device, choose_precision, log_to, set_seed
from demo_sdtps.runtime.distributed import (
    all_gather_object,
    any_rank,
    check_equal,
    is_main,
    rank,
    world_size,
)
from demo_sdtps.runtime.files import LOCK, lock_file, write_json
from demo_sdtps.training.monitor import LossMonitor, Meter, Stopped, StopRequest, listen
from demo_sdtps.training.output import (
    BEST,
    FINISHED,
    LAST,
    LOG,
    PREVIOUS,
    Resumed,
    WriteScalars,
    prepare_folder,
    restore_threads,
    scalar_boards,
    track_run,
)
from demo_sdtps.training.resume import (
    DIGEST,
    check_unchanged,
    find_run,
    random_states,
    set_random_states,
)

PART = "loss/"  # prefix of the names of the loss's parts
logger = logging.getLogger(__name__)


class Loss(NamedTuple):
    """The mean loss of a batch, its number of samples, and sums over them of what else is recorded, by name. A name
    "loss/<part>" is a part of the loss, recorded under "losses"."""

    mean: torch.Tensor
    samples: int
    sums: Mapping[str, torch.Tensor]


class Evaluation(NamedTuple):
    """The results of an evaluation."""

    record: Mapping[str, object]  # entries of the epoch's record in metrics.json
    score: float  # the epoch with the largest is saved as best.pth
    scalars: Mapping[str, float]  # for the boards, as TensorBoard
    table: str  # for the log


@dataclass(frozen=True)
class Task:
    """What the loop is given: a model on its device, and what it is trained by."""

    model: nn.Module
    loader: DataLoader
    batches: Callable[[], Iterator[Any]]  # of an epoch of `loader`; a batch has `to(device)`
    loss: Callable[[Any], Loss]  # of a batch on the device
    evaluate: Callable[[int], Evaluation]  # after an epoch, 0 for the untrained model
    optimizers: Sequence[torch.optim.Optimizer]  # the model's first
    begin_epoch: Callable[[int], object]  # sets what depends on the epoch, from 1, such as rates
    describe: Callable[[Mapping[str, float]], str]  # an epoch's means in a few words, for the log
    unit: str  # plural name of a sample, for the log
    digest: Mapping[str, str]  # of the data, by `digest_lines`
    can_record: bool = False  # whether the loss and its gradients may be a CUDA graph
    notes: Sequence[str] = ()  # lines for the log; "WARNING: " begins a warning
    about: Mapping[str, object] = field(default_factory=dict)  # saved in every checkpoint
    auxiliary: Mapping[str, nn.Module] = field(default_factory=dict)  # saved in last.pth


MakeTask = Callable[[CfgNode, torch.device, Resumed | None], Task]


class Run:
    """A run in progress: `epoch` epochs are done, and `step` steps of the next. `records` are those of metrics.json."""

    def __init__(
        self, cfg: CfgNode, task: Task, stop: StopRequest, write_scalars: WriteScalars | None
    ):
        self.cfg, self.task, self.stop, self.write_scalars = cfg, task, stop, write_scalars
        self.output = Path(cfg.OUTPUT_DIR)
        self.device = next(task.model.parameters()).device
        self.precision = choose_precision(cfg.SOLVER.AMP, self.device)
        # Only the gradients of float16 underflow; with other types the scaler does nothing.
        is_half = self.precision is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=is_half)
        self.monitor, self.meter = LossMonitor(), Meter()
        self.epoch, self.step, self.best = 0, 0, -1.0
        self.records: list[dict] = []
        self.saved = self.began = time.monotonic()
        self.done_before = 0.0  # epochs that earlier processes have done

    def rate(self) -> float:
        """The largest learning rate of the model's optimiser."""
        return max(group["lr"] for group in self.task.optimizers[0].param_groups)

    def checkpoint(self, is_due: bool = False) -> None:
        """Save where that is due, after SOLVER.CHECKPOINT_MINUTES, or where a signal asks for it, which ends the run by
        `Stopped`; one process decides for all."""
        solver = self.cfg.SOLVER
        if minutes := solver.CHECKPOINT_MINUTES:
            is_due = is_due or time.monotonic() - self.saved >= 60 * minutes
        is_stopped, is_due = any_rank(bool(self.stop.signal), is_due)
        if is_stopped or is_due:
            self.save()
        if is_stopped and self.epoch < solver.MAX_EPOCHS:
            raise Stopped

    def evaluate(self, epoch: int) -> Evaluation:
        """The task's evaluation, which a signal aborts: it is repeated when the run is resumed."""
        self.checkpoint()
        # Several processes finish it together: a process that left would block the others.
        self.stop.is_immediate = world_size() == 1
        try:
            return self.task.evaluate(epoch)
        except Stopped:
            self.save()
            raise
        finally:
            self.stop.is_immediate = False

    def finish_epoch(self) -> None:
        """Record an epoch whose steps are done, evaluate it where that is due, and save the best checkpoint."""
        solver, task, meter, epoch = self.cfg.SOLVER, self.task, self.meter, self.epoch + 1
        self.monitor.flush()
        rate = self.rate()
        means = meter.means() | {"lr": rate}
        terms = "".join(f", {name} {value:.3f}" for name, value in loss_parts(means).items())
        logger.info(
            f"epoch {epoch}: {task.describe(means)}{terms}, lr {rate:.2e}, {meter.speed():.0f} {task.unit}/s, "
            f"waited {100 * meter.waited / meter.seconds:.1f} % for data"
        )
        is_last = epoch == solver.MAX_EPOCHS
        evaluation = self.evaluate(epoch) if is_last or epoch % solver.EVAL_PERIOD == 0 else None
        self.report(epoch, means, evaluation)
        self.epoch, self.step, self.meter = epoch, 0, Meter()
        if evaluation and evaluation.score > self.best:
            self.best = evaluation.score
            if is_main():
                save_checkpoint(self.output / BEST, self.cfg, task.model, epoch, state=task.about)
        done = epoch - self.done_before
        if done and not is_last:  # not where evaluation alone was left of it
            seconds = (time.monotonic() - self.began) / done
            left = timedelta(seconds=round(seconds * (solver.MAX_EPOCHS - epoch)))
            logger.info("%d of %d epochs, about %s left", epoch, solver.MAX_EPOCHS, left)

    def report(self, epoch: int, means: Mapping[str, float], evaluation: Evaluation | None) -> None:
        """Write the record of an epoch to metrics.json and the boards, and its evaluation to the log."""
        record: dict[str, object] = {"epoch": epoch}
        record |= {name: value for name, value in means.items() if "/" not in name}
        if losses := loss_parts(means):
            record["losses"] = losses
        scalars = {f"train/{name}": value for name, value in means.items()}
        if evaluation:
            record |= evaluation.record
            scalars |= evaluation.scalars
            title = f"epoch {epoch}" + ("" if epoch else " (before training)")
            logger.info("%s\n%s", title, evaluation.table)
        self.records.append(record)
        if self.write_scalars:  # in the main process
            write_json(self.output / METRICS, self.records)
            self.write_scalars(scalars, epoch)

    def save(self) -> None:
        """Write last.pth, from which the run can be resumed; the previous one is kept beside it. Raises `UserError` where the
        loss, or what the optimisers made of its gradients, is not finite. Learning rates follow from the epoch and are in the
        optimisers' states; the position in the data is `step`, because the batches of an epoch follow from the seed."""
        self.monitor.flush()
        step = f"step {self.step} of epoch {self.epoch + 1}" if self.step else f"epoch {self.epoch}"
        check_finite(f"The weights after {step}", self.task.model.state_dict().values())
        states = all_gather_object(random_states())
        self.saved = time.monotonic()
        if not is_main():
            return
        task, meter = self.task, self.meter
        state = {
            **task.about,
            "step": self.step,
            "best": self.best,
            "records": self.records,
            "meter": {"seen": meter.count, **vars(meter)},
            "scaler": self.scaler.state_dict(),
            DIGEST: task.digest,
            "random": states,
            "optimizers": [optimizer.state_dict() for optimizer in task.optimizers],
            **{name: module.state_dict() for name, module in task.auxiliary.items()},
        }
        path, previous = self.output / LAST, self.output / PREVIOUS
        save_checkpoint(path, self.cfg, task.model, self.epoch, previous, state)

    def restore(self, resumed: Resumed) -> None:
        """Set the state that `save` wrote."""
        state, task = resumed.state, self.task
        fill_model(task.model, state["model"], resumed.path)
        for name, module in task.auxiliary.items():
            module.load_state_dict(state[name])
        for optimizer, content in zip(task.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(content)
        if state["scaler"]:  # in float16
            self.scaler.load_state_dict(state["scaler"])
        for name in ("epoch", "step", "best", "records"):
            setattr(self, name, state[name])
        if self.step:
            before = state["meter"]
            totals = {name: total.to(self.device) for name, total in before["totals"].items()}
            self.meter = Meter(totals, before["seen"], before["seconds"], before["waited"])
        epoch_sampler(task.loader).begin(self.epoch + 1)  # on which the loader's length depends
        self.began, self.done_before = time.monotonic(), self.epoch + self.step / len(task.loader)
        rate, length, epoch = self.rate(), self.cfg.SOLVER.MAX_EPOCHS, self.epoch + 1
        task.begin_epoch(epoch)
        if resumed.epochs != length:
            logger.warning(
                f"SOLVER.MAX_EPOCHS is {length} and was {resumed.epochs}: learning rates follow the new length, from "
                f"{rate:.2g} to {self.rate():.2g} in epoch {epoch}, so the numbers are not those of an unbroken run."
            )
        states = state["random"]
        if len(states) != world_size():
            logger.warning(
                "the run had %d processes and is resumed with %d, so its random numbers differ from here on",
                len(states),
                world_size(),
            )
        set_random_states(states[rank() % len(states)])


def loss_parts(means: Mapping[str, float]) -> dict[str, float]:
    """Those of an epoch's means that are parts of the loss, by part."""
    return {name.removeprefix(PART): mean for name, mean in means.items() if name.startswith(PART)}


@contextmanager
def open_run(
    cfg: CfgNode, overwrite: bool, make_task: MakeTask, schema: Schema
) -> Iterator[Run | None]:
    """The run of `cfg` in OUTPUT_DIR, new or resumed, with its files open in the context; None where it is finished. Nothing is
    written or replaced before the input has been checked. Only the main process writes."""
    output = Path(cfg.OUTPUT_DIR)
    with lock_file(output / LOCK, f"OUTPUT_DIR {output}") if is_main() else nullcontext():
        device, resumed = choose_device(cfg), find_run(cfg, overwrite, schema)
        if resumed and resumed.state["epoch"] >= cfg.SOLVER.MAX_EPOCHS:
            if is_main():
                # one that was killed after its last checkpoint
                write_json(output / RECORD, read_run(output) | {"status": FINISHED})
                print_lines(
                    f"The run in {output} is finished ({resumed.progress}); nothing is left to do."
                )
            yield None
            return
        if resumed:
            restore_threads(output)
        task = make_task(cfg, device, resumed)
        check_equal(task.digest, "files of the data set")
        if resumed:
            check_unchanged(resumed, task.digest)
        all_gather_object(None)  # wait: another process may still read what is replaced
        with ExitStack() as files, listen() as stop:
            write_scalars = None
            if is_main():
                prepare_folder(cfg, resumed.path if resumed else None)
                files.enter_context(log_to(output / LOG))
                files.enter_context(track_run(cfg, device, resumed))
                first = resumed.state["epoch"] + 1 if resumed else None
                write_scalars = files.enter_context(scalar_boards(cfg, first))
            run = Run(cfg, task, stop, write_scalars)
            for note in task.notes:
                text = note.removeprefix("WARNING: ")  # the log has the level
                logger.log(logging.INFO if text == note else logging.WARNING, "%s", text)
            precision, threads = run.precision or torch.float32, torch.get_num_threads()
            logger.info("device %s, precision %s, threads: %d", device, precision, threads)
            if not is_main():  # processes start with equal models and draw different random numbers
                set_seed((cfg.SOLVER.SEED + rank()) % 2**32)
            if resumed:
                logger.info("continuing after %s, from %s", resumed.progress, resumed.path)
                run.restore(resumed)
            yield run
            # Nothing can damage the last checkpoint of a finished run any more, so the previous one is not needed.
            if is_main():
                (output / PREVIOUS).unlink(missing_ok=True)
            logger.info("the run is in %s", output)
