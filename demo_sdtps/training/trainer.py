"""The training loop of re-identification and of SEPS: epochs, evaluation, the files of a run, and resuming it.

A run that was interrupted resumes from last.pth and gives, to the last bit, the numbers of an uninterrupted one.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Generic, NamedTuple, NoReturn, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.datasets.loaders import epoch_sampler
from demo_sdtps.evaluation.tables import METRICS
from demo_sdtps.modeling.checkpoints.loading import fill_model, save_checkpoint
from demo_sdtps.runtime.device import choose_precision, deterministic_backward, set_seed
from demo_sdtps.runtime.distributed import all_gather_object, any_rank, is_main, rank, world_size
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.matmul import float32_products
from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.monitor import LossMonitor, Meter
from demo_sdtps.training.output import BEST, LAST, PREVIOUS, scalar_boards
from demo_sdtps.training.resume import DIGEST, Resumed, random_states, set_random_states
from demo_sdtps.training.stop import Stopped, StopRequest

TrainedModel = TypeVar("TrainedModel", bound=nn.Module)
TrainingBatch = TypeVar("TrainingBatch")
Loss = tuple[torch.Tensor, int, Mapping[str, torch.Tensor]]  # of a batch: `Trainer.loss`
PART = "loss/"  # prefix of the names of the loss's parts
logger = logging.getLogger(__name__)


def parts_of_loss(means: Mapping[str, float]) -> dict[str, float]:
    """Those of an epoch's means that are parts of the loss, by part."""
    return {name.removeprefix(PART): mean for name, mean in means.items() if name.startswith(PART)}


class Evaluation(NamedTuple):
    """The results of an evaluation."""

    record: Mapping[str, object]  # entries of the epoch's record in metrics.json
    score: float  # the epoch with the largest is saved as best.pth
    scalars: Mapping[str, float]  # for the boards, as TensorBoard
    table: str  # for the log


class Trainer(ABC, Generic[TrainedModel, TrainingBatch]):
    """Trains `model` on its device: `epoch` epochs are done, and `step` steps of the next.

    `optimizers` begin with the model's. `auxiliary` modules train beside the model and are saved under their names; `about` is
    saved in every checkpoint, and `digest`, that of the run's data (`digest_data`), in those from which it is resumed.
    `notes` are lines for the log; those that begin with "WARNING: " are warnings.
    """

    unit: str  # plural name of a sample, for the log

    def __init__(
        self,
        cfg: CfgNode,
        model: TrainedModel,
        loader: DataLoader,
        optimizers: Sequence[torch.optim.Optimizer],
        digest: Mapping[str, str],
        auxiliary: Mapping[str, nn.Module] | None = None,
        about: Mapping[str, object] | None = None,
        notes: Sequence[str] = (),
    ):
        self.cfg, self.model, self.loader, self.notes = cfg, model, loader, notes
        self.optimizers, self.digest = optimizers, digest
        self.auxiliary, self.about = auxiliary or {}, about or {}
        self.stop = StopRequest()
        self.device = next(model.parameters()).device
        self.precision = choose_precision(cfg.SOLVER.AMP, self.device)
        # Only the gradients of float16 underflow; with other types the scaler does nothing.
        is_half = self.precision is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=is_half)
        self.monitor, self.meter = LossMonitor(), Meter()
        self.epoch, self.step, self.best = 0, 0, -1.0
        self.saved = time.monotonic()
        self.records: list[dict] = []

    @abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Set what depends on the epoch, counted from 1, such as learning rates."""

    @abstractmethod
    def batches(self) -> Iterator[TrainingBatch]:
        """The batches of `loader`."""

    @abstractmethod
    def loss(self, batch: TrainingBatch) -> Loss:
        """The mean loss of a batch, its number of samples, and sums over them of what else is to be recorded, by name.

        A name "loss/<part>" is a part of the loss, recorded under "losses".
        """

    @abstractmethod
    def evaluate(self, epoch: int) -> Evaluation:
        """Evaluate the model after an epoch, 0 for the untrained one."""

    @abstractmethod
    def describe(self, means: Mapping[str, float]) -> str:
        """The means over an epoch's samples in a few words, for the log."""

    def is_due(self, epoch: int) -> bool:
        """Whether the model is evaluated after this epoch."""
        return epoch > 0 and (
            epoch % self.cfg.SOLVER.EVAL_PERIOD == 0 or epoch == self.cfg.SOLVER.MAX_EPOCHS
        )

    def run(self, output: Path, resumed: Resumed | None = None) -> list[dict]:
        """Train to SOLVER.MAX_EPOCHS, from the beginning or from a checkpoint, with the run's files in `output`.

        Returns the records of metrics.json, one per epoch.
        """
        self.output = output
        for note in self.notes:
            text = note.removeprefix("WARNING: ")  # the log has the level
            logger.log(logging.INFO if text == note else logging.WARNING, "%s", text)
        first = resumed.state["epoch"] + 1 if resumed else None
        with scalar_boards(output, self.cfg, first) as self.write_scalars, self.stop.listening():
            if not is_main():  # processes start with equal models and draw different random numbers
                set_seed((self.cfg.SOLVER.SEED + rank()) % 2**32)
            if resumed:
                self._restore(resumed)
            self._train()
        return self.records

    def _train(self) -> None:
        solver = self.cfg.SOLVER
        precision, threads = self.precision or torch.float32, torch.get_num_threads()
        logger.info("device %s, precision %s, threads: %d", self.device, precision, threads)
        if not self.records and self.step == 0 and self.is_due(0):
            self._report(0, {}, self._evaluate(0))
        started, before = time.monotonic(), self.epoch + self.step / len(self.loader)
        while self.epoch < solver.MAX_EPOCHS:
            self.train_epoch()
            self._finish_epoch()
            is_last = self.epoch >= solver.MAX_EPOCHS
            if self.epoch > before and not is_last:  # not where evaluation alone was left of it
                seconds = (time.monotonic() - started) / (self.epoch - before)
                left = timedelta(seconds=round(seconds * (solver.MAX_EPOCHS - self.epoch)))
                logger.info("%d of %d epochs, about %s left", self.epoch, solver.MAX_EPOCHS, left)
            (is_stopped,) = any_rank(bool(self.stop.signal))
            if is_stopped and not is_last:
                self._stop()
            if is_last or self.epoch % solver.CHECKPOINT_PERIOD == 0:
                self._save()
        # Nothing can damage the last checkpoint of a finished run any more, so the previous one is not needed.
        if is_main():
            (self.output / PREVIOUS).unlink(missing_ok=True)

    def train_epoch(self) -> None:
        """The steps of an epoch, or those that an interrupted one has left."""
        solver, epoch = self.cfg.SOLVER, self.epoch + 1
        if self.step == 0:
            self.meter = Meter()
        self.begin_epoch(epoch)
        epoch_sampler(self.loader).begin(epoch, self.step)
        self.model.train()
        bar = progress(
            self.meter.time_loading(self.batches()),
            f"epoch {epoch}/{solver.MAX_EPOCHS}",
            len(self.loader),
            unit="batch",
            initial=self.step,
        )
        for batch in bar:
            with float32_products(self.model):
                self._train_step(batch)
            # what is read anyway: no wait for a GPU
            if self.step % solver.LOG_PERIOD == 0 and self.monitor.recent:
                bar.set_postfix_str(
                    f"loss {self.monitor.recent[-1]:.3f}, {self.meter.speed()[0]:.0f} {self.unit}/s"
                )
            minutes = solver.CHECKPOINT_MINUTES
            is_due = bool(minutes) and time.monotonic() - self.saved >= 60 * minutes
            is_stopped, is_due = any_rank(bool(self.stop.signal), is_due)
            if is_stopped:
                self._stop()
            if is_due:
                self._save()

    def gradients(self, batch: TrainingBatch) -> Loss:
        """`loss` of a batch, without gradient; the parameters then have its gradient, in float16 times the scaler's factor."""
        loss, count, sums = self.loss(batch)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with deterministic_backward():
            self.scaler.scale(loss).backward()
        return loss.detach(), count, sums

    def _train_step(self, batch: TrainingBatch) -> None:
        loss, count, sums = self.gradients(batch)
        if self.cfg.SOLVER.GRAD_CLIP:
            self.scaler.unscale_(self.optimizers[0])  # the norm is that of the unscaled gradient
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.SOLVER.GRAD_CLIP)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        self.step += 1
        self.meter.update(count, loss=loss * count, **sums)
        self.monitor.add(self.epoch + 1, self.step, loss)

    def _finish_epoch(self) -> None:
        """Record an epoch whose steps are done, evaluate it where that is due, and save the best checkpoint."""
        epoch = self.epoch + 1
        self.monitor.flush()
        rate = max(group["lr"] for group in self.optimizers[0].param_groups)
        means = self.meter.means() | {"lr": rate}
        speed, waited = self.meter.speed()
        terms = "".join(f", {name} {value:.3f}" for name, value in parts_of_loss(means).items())
        logger.info(
            f"epoch {epoch}: {self.describe(means)}{terms}, lr {rate:.2e}, {speed:.0f} {self.unit}/s, "
            f"waited {100 * waited:.1f} % for data"
        )
        evaluation = self._evaluate(epoch) if self.is_due(epoch) else None
        self._report(epoch, means, evaluation)
        self.epoch, self.step = epoch, 0
        if evaluation and evaluation.score > self.best:
            self.best = evaluation.score
            if is_main():
                save_checkpoint(self.output / BEST, self.cfg, self.model, epoch, state=self.about)

    def _evaluate(self, epoch: int) -> Evaluation:
        """`evaluate`, which a signal interrupts: it is repeated when the run is resumed."""
        before = random_states()
        try:
            # Several processes finish it together: a process that left would block the others.
            with self.stop.raise_immediately() if world_size() == 1 else nullcontext():
                return self.evaluate(epoch)
        except Stopped:
            set_random_states(before)
            self._stop()

    def _report(
        self, epoch: int, means: Mapping[str, float], evaluation: Evaluation | None
    ) -> None:
        """Write the record of an epoch to metrics.json and the boards, and its evaluation to the log."""
        record = {name: value for name, value in means.items() if "/" not in name}
        losses = parts_of_loss(means)
        self.records.append(
            {"epoch": epoch, **record}
            | ({"losses": losses} if losses else {})
            | (dict(evaluation.record) if evaluation else {})
        )
        if not is_main():
            return
        write_json(self.output / METRICS, self.records)
        scalars = {f"train/{name}": value for name, value in means.items()}
        self.write_scalars({**scalars, **(evaluation.scalars if evaluation else {})}, epoch)
        if evaluation:
            title = f"epoch {epoch}" + ("" if epoch else " (before training)")
            logger.info("%s\n%s", title, evaluation.table)

    def _stop(self) -> NoReturn:
        """Save the run and end it by `Stopped`."""
        self._save()
        raise Stopped(self.stop.signal)

    def _save(self) -> None:
        """Write last.pth, from which the run can be resumed; the previous one is kept beside it.

        `epoch` epochs are done, and `step` steps of the next. Learning rates follow from the epoch and are in the optimisers'
        states; the position in the data is `step`, because the batches of an epoch follow from the seed.
        """
        self.monitor.flush()
        states = all_gather_object(random_states())
        self.saved = time.monotonic()
        if not is_main():
            return
        state = {
            **self.about,
            "step": self.step,
            "best": self.best,
            "records": self.records,
            "meter": self.meter.state(),
            "scaler": self.scaler.state_dict(),
            DIGEST: self.digest,
            "random": states,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            **{name: module.state_dict() for name, module in self.auxiliary.items()},
        }
        save_checkpoint(
            self.output / LAST, self.cfg, self.model, self.epoch, self.output / PREVIOUS, state
        )

    def _restore(self, resumed: Resumed) -> None:
        """Set the state that `_save` wrote."""
        state = resumed.state
        fill_model(self.model, state["model"], resumed.path)
        for name, module in self.auxiliary.items():
            module.load_state_dict(state[name])
        for optimizer, state_of in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(state_of)
        if state["scaler"]:  # in float16
            self.scaler.load_state_dict(state["scaler"])
        self.epoch, self.step, self.best, self.records = (
            state[name] for name in ("epoch", "step", "best", "records")
        )
        self.meter = Meter.from_state(state["meter"], self.device)
        epoch_sampler(self.loader).begin(self.epoch + 1)
        states = state["random"]
        if len(states) != world_size():
            logger.warning(
                "the run had %d processes and is resumed with %d, so its random numbers differ from here on",
                len(states),
                world_size(),
            )
        set_random_states(states[rank() % len(states)])
