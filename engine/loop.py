"""The one training loop, of re-identification and of SEPS: epochs, evaluation, the files of a run, and going on with one.

A run that was interrupted anywhere goes on from last.pth as if nothing had happened: its numbers are the same, to the last bit.
"""
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.loaders import stop_workers
from demo_sdtps.engine.checkpoint import fill_model
from demo_sdtps.engine.distributed import all_gather_object, any_rank, check_agreement, is_main, rank, world_size
from demo_sdtps.engine.meter import Meter
from demo_sdtps.engine.output import BEST, LAST, PREVIOUS, scalar_board, write_records
from demo_sdtps.engine.resume import Resumed
from demo_sdtps.engine.runtime import choose_precision, set_seed
from demo_sdtps.engine.state import fingerprint, random_states, set_random_states
from demo_sdtps.engine.stop import StopNow, Stopped, StopRequest
from demo_sdtps.engine.watch import LossWatch, check_weights
from demo_sdtps.modeling.weights import current_names

logger = logging.getLogger(__name__)


class Training(ABC):
    """A model that trains: what the loop needs to know of it."""

    unit: str
    """What a batch has so many of."""
    measured: tuple[str, ...]
    """The means of an epoch that its record keeps."""
    save: Callable
    """Writes a checkpoint: (path, cfg, model, epoch, previous=…, **state)."""

    def __init__(self, cfg: CfgNode, model: nn.Module, loader: DataLoader, test_loaders: Sequence[DataLoader],
                 optimizers: list[torch.optim.Optimizer], modules: dict[str, nn.Module]):
        """`test_loaders`: what `evaluate` reads; `optimizers`: the model's first; `modules`: those that train beside it."""
        self.cfg, self.model, self.loader, self.test_loaders = cfg, model, loader, test_loaders
        self.optimizers, self.modules = optimizers, modules
        self.device = next(model.parameters()).device
        self.precision = choose_precision(cfg.SOLVER.AMP, self.device)

    @property
    def rate(self) -> float:
        """The learning rate of the fastest group."""
        return max(group["lr"] for group in self.optimizers[0].param_groups)

    def is_due(self, epoch: int) -> bool:
        """Whether an epoch, from 1, is evaluated."""
        return epoch % self.cfg.SOLVER.EVAL_PERIOD == 0 or epoch == self.cfg.SOLVER.MAX_EPOCHS

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """Set what follows from the epoch's number: the learning rates, for one."""

    @abstractmethod
    def batches(self) -> Iterator:
        """The loader's batches."""

    @abstractmethod
    def step(self, batch) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
        """A batch → its loss, how many samples it has, and sums over them of what is measured besides."""

    @abstractmethod
    def evaluate(self, epoch: int) -> dict[str, object]:
        """What an evaluation adds to the record of an epoch, or of the untrained model (0); nothing where none is due."""

    @abstractmethod
    def score(self, record: Mapping) -> float | None:
        """By which the best epoch is chosen; None where there was no evaluation."""

    @abstractmethod
    def scalars(self, record: Mapping) -> dict[str, float]:
        """What of the evaluation in a record TensorBoard shows."""

    @abstractmethod
    def table(self, record: Mapping) -> str:
        """The evaluation in a record, for the log; empty where there was none."""

    @abstractmethod
    def brief(self, means: Mapping[str, float]) -> str:
        """The means so far, for the progress bar."""

    @abstractmethod
    def summary(self, means: Mapping[str, float]) -> str:
        """The means of an epoch, for the log."""


def run_training(training: Training, output: Path, resumed: Resumed | None = None) -> list[dict]:
    """Train to SOLVER.MAX_EPOCHS, from the beginning or from where a run was → the records of metrics.json, one per epoch.

    Raises `UserError` for an image that cannot be read, a loss that is no longer finite, and a file that cannot be written;
    `Stopped` where SIGTERM asked for it. However it ends, the loading processes end with it.
    """
    first = resumed.state["epoch"] + 1 if resumed else None
    try:
        with scalar_board(output, first) if is_main() else nullcontext() as board, StopRequest().listening() as stop:
            loop = Loop(training, output, board, stop)
            check_agreement("the training set", loop.data)
            if not is_main():
                set_seed((training.cfg.SOLVER.SEED + rank()) % 2**32)  # they begin with one model, and draw for themselves
            if resumed:
                loop.restore(resumed)
            return loop.run()
    finally:
        for loader in (training.loader, *training.test_loaders):
            stop_workers(loader)


def loss_parts(means: Mapping[str, float]) -> dict[str, float]:
    """The parts of the loss among the means of an epoch, which name them "loss/<part>", by their names."""
    return {name.removeprefix("loss/"): value for name, value in means.items() if name.startswith("loss/")}


class Loop:
    """A training under way: `epoch` epochs are done, and `step` steps of the next."""

    def __init__(self, training: Training, output: Path, board: SummaryWriter, stop: StopRequest):
        self.training, self.output, self.board, self.stop = training, output, board, stop
        self.cfg = training.cfg
        # float16 has too small a range for gradients; with other types the scaler does nothing.
        self.scaler = torch.amp.GradScaler(training.device.type, enabled=training.precision is torch.float16)
        self.watch = LossWatch(training.loader)
        self.data = fingerprint(self.cfg, training.loader)
        self.epoch, self.step, self.best = 0, 0, -1.0
        self.records: list[dict] = []
        self.meter = Meter()
        self.saved = time.monotonic()

    def run(self) -> list[dict]:
        """All epochs that are left."""
        solver = self.cfg.SOLVER
        logger.info("device %s, precision %s", self.training.device, self.training.precision or torch.float32)
        if not self.records and self.step == 0 and (found := self._evaluate(0)):
            self._report({"epoch": 0, **found})
        while self.epoch < solver.MAX_EPOCHS:
            self._train_epoch()
            self._finish_epoch()
            is_last = self.epoch >= solver.MAX_EPOCHS
            (is_stopped,) = any_rank(self.stop.requested)
            if is_last or is_stopped or self.epoch % solver.CHECKPOINT_PERIOD == 0:
                self._save()
            if is_stopped and not is_last:
                raise Stopped
        # The checkpoint of a finished run is whole, and nothing comes that could damage it.
        if is_main():
            (self.output / PREVIOUS).unlink(missing_ok=True)
        return self.records

    def restore(self, resumed: Resumed) -> None:
        """Go on from a checkpoint. Raises `UserError` where the data or the model are others than then."""
        state, training = resumed.state, self.training
        if state["data"] != self.data:
            raise UserError(f"The training files in DATASETS.ROOT_DIR {self.cfg.DATASETS.ROOT_DIR} are not those that "
                            f"{resumed.path} was trained on (some were added, removed or renamed), so the run cannot go on as "
                            "it began; put them back, or start another run.")
        fill_model(training.model, current_names(state["model"]), resumed.path)
        for name, module in training.modules.items():
            module.load_state_dict(state[name])
        for optimizer, own in zip(training.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.epoch, self.step, self.best, self.records = (state[name] for name in ("epoch", "step", "best", "records"))
        self.meter = Meter.of_state(state["meter"], training.device)
        states = state["random"]
        if len(states) != world_size():
            logger.warning("the run had %d processes and goes on with %d: what they draw differs from then on", len(states),
                           world_size())
        set_random_states(states[rank() % len(states)])

    def _train_epoch(self) -> None:
        """What is left of an epoch's steps."""
        training, solver, epoch = self.training, self.cfg.SOLVER, self.epoch + 1
        if self.step == 0:
            self.meter = Meter()
        training.begin(epoch)
        training.loader.batch_sampler.begin(epoch, self.step)
        training.model.train()
        bar = progress(self.meter.timed(training.batches()), f"epoch {epoch}/{solver.MAX_EPOCHS}", len(training.loader),
                       unit="batch", initial=self.step)
        for batch in bar:
            self._train_step(batch)
            if self.step == 1 or self.step % solver.LOG_PERIOD == 0:
                bar.set_postfix_str(training.brief(self.meter.means()))
            is_due = bool(solver.CHECKPOINT_MINUTES) and time.monotonic() - self.saved >= 60 * solver.CHECKPOINT_MINUTES
            is_stopped, is_due = any_rank(self.stop.requested, is_due)
            if is_stopped or is_due:
                self._save()
            if is_stopped:
                raise Stopped

    def _train_step(self, batch) -> None:
        training, scaler = self.training, self.scaler
        loss, count, sums = training.step(batch)
        for optimizer in training.optimizers:
            optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        if self.cfg.SOLVER.GRAD_CLIP:
            scaler.unscale_(training.optimizers[0])  # for the norm to be that of the gradient itself
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), self.cfg.SOLVER.GRAD_CLIP)
        for optimizer in training.optimizers:
            scaler.step(optimizer)
        scaler.update()
        self.step += 1
        self.meter.update(count, loss=loss.detach() * count, **sums)
        self.watch.add(self.epoch + 1, self.step, loss)

    def _finish_epoch(self) -> None:
        """The record of an epoch whose steps are done, with its evaluation, and the best checkpoint."""
        epoch, training = self.epoch + 1, self.training
        self.watch.flush()
        means = self.meter.means() | {"lr": training.rate}
        logger.info("epoch %d: %s, lr %.2e, %.0f %s/s, waited %.1f %% for data", epoch, training.summary(means), means["lr"],
                    means["rate"], training.unit, 100 * means["waited"])
        parts = {"losses": found} if (found := loss_parts(means)) else {}
        record = {"epoch": epoch, **{name: means[name] for name in training.measured}, **parts, **self._evaluate(epoch)}
        self._report(record)
        self.epoch, self.step = epoch, 0
        score = training.score(record)
        if score is not None and score > self.best:
            self.best = score
            check_weights(training.model, epoch)
            if is_main():
                training.save(self.output / BEST, self.cfg, training.model, epoch)

    def _evaluate(self, epoch: int) -> dict[str, object]:
        """The evaluation of an epoch; one that is interrupted is done again when the run goes on."""
        before = random_states()
        try:
            # Several processes finish it together: one that left would keep the others waiting.
            with self.stop.interrupt_immediately() if world_size() == 1 else nullcontext():
                return self.training.evaluate(epoch)
        except StopNow:
            set_random_states(before)
            self._save()
            raise Stopped from None

    def _report(self, record: dict) -> None:
        """A new record to metrics.json (written whole), TensorBoard and the log."""
        self.records.append(record)
        if not is_main():
            return
        scalars = {f"train/{name}": record[name] for name in self.training.measured if name in record}
        scalars |= {f"train/loss/{name}": value for name, value in record.get("losses", {}).items()}
        write_records(self.records, self.output, self.board, scalars | self.training.scalars(record))
        if table := self.training.table(record):
            logger.info("epoch %d%s\n%s", record["epoch"], "" if record["epoch"] else " (untrained)", table)

    def _save(self) -> None:
        """last.pth, from which the run can go on; the one before stays until it is whole, and beside it."""
        training = self.training
        self.watch.flush()
        check_weights(training.model, self.epoch + bool(self.step))
        states = all_gather_object(random_states())
        self.saved = time.monotonic()
        if not is_main():
            return
        training.save(
            self.output / LAST, self.cfg, training.model, self.epoch, previous=self.output / PREVIOUS, step=self.step,
            best=self.best, records=self.records, meter=self.meter.state(), scaler=self.scaler.state_dict(), data=self.data,
            optimizers=[optimizer.state_dict() for optimizer in training.optimizers], random=states,
            **{name: module.state_dict() for name, module in training.modules.items()})
