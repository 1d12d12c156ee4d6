"""Training (spec 7): epochs of identity batches, evaluation, and the files of a run."""
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter
from yacs.config import CfgNode

from config import UserError
from config.files import write_json
from config.progress import progress
from datasets.loaders import Batch, batches
from engine.checkpoint import save_checkpoint
from engine.evaluate import TestData, as_record, as_table, evaluate
from engine.optim import make_center_optimizer, make_optimizer, make_scheduler
from engine.runtime import autocast, choose_precision
from modeling import DeMo
from modeling.losses import make_center_losses, total_loss

logger = logging.getLogger(__name__)

METRICS, LAST, BEST, CONFIG = "metrics.json", "last.pth", "best.pth", "config.yml"


@dataclass
class Meter:
    """Means over an epoch, weighted by batch size, and how much of it was spent waiting for data."""

    loss: float = 0.0
    accuracy: float = 0.0
    seen: int = 0
    waited: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def update(self, loss: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> None:
        # Sums stay on the device: reading them every batch would make the CPU wait for the GPU.
        self.loss = self.loss + loss.detach() * len(labels)
        self.accuracy = self.accuracy + (scores.detach().argmax(dim=1) == labels).sum()
        self.seen += len(labels)

    def timed(self, loaded: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; the time until each is there counts as waited."""
        iterator = iter(loaded)
        while True:
            asked = time.perf_counter()
            batch = next(iterator, None)
            self.waited += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def means(self) -> dict[str, float]:
        """Loss, accuracy, triplets per second and the share of the time that was waited for data, so far."""
        seconds = time.perf_counter() - self.started
        return {"loss": float(self.loss) / self.seen, "accuracy": float(self.accuracy) / self.seen,
                "rate": self.seen / seconds, "waited": self.waited / seconds}


def train(cfg: CfgNode, model: DeMo, loader: DataLoader, test_data: TestData, output: Path) -> list[dict]:
    """Train `model` (on its device), evaluate it every SOLVER.EVAL_PERIOD epochs, and keep the run's files in `output`.

    Returns the records of metrics.json: one per epoch, with the rankings where it was evaluated. Raises `UserError` for a
    picture that cannot be read and a loss that is no longer finite.
    """
    device = next(model.parameters()).device
    precision = choose_precision(cfg.SOLVER.AMP, device)
    logger.info("device %s, precision %s", device, precision or torch.float32)
    optimizer = make_optimizer(cfg, model)
    center_losses = make_center_losses(cfg, model.num_class, list(model.widths.values())).to(device)
    optimizers = [optimizer, *([make_center_optimizer(cfg, center_losses)] if center_losses else ())]
    scheduler = make_scheduler(cfg, optimizer)
    # float16 has too small a range for gradients; with other types the scaler does nothing.
    scaler = torch.amp.GradScaler(device.type, enabled=precision is torch.float16)
    records = []
    best = -1.0
    with SummaryWriter(output) as board:
        if cfg.SOLVER.EVAL_UNTRAINED:
            records.append({"epoch": 0, "patterns": as_record(evaluate(cfg, model, test_data))})
            _report(records, output, board)
        for epoch in range(1, cfg.SOLVER.MAX_EPOCHS + 1):
            scheduler.step(epoch)
            loader.batch_sampler.epoch = epoch
            record = {"epoch": epoch, **_train_epoch(cfg, model, center_losses, loader, optimizers, scaler, precision, epoch)}
            records.append(record)
            is_last = epoch == cfg.SOLVER.MAX_EPOCHS
            if is_evaluated := epoch % cfg.SOLVER.EVAL_PERIOD == 0 or is_last:
                record["patterns"] = as_record(evaluate(cfg, model, test_data))
            _report(records, output, board)
            if is_evaluated and (score := record["patterns"][str(cfg.TEST.RETURN_PATTERN)]["mAP"]) > best:
                best = score
                save_checkpoint(output / BEST, cfg, model, epoch)
            if epoch % cfg.SOLVER.CHECKPOINT_PERIOD == 0 or is_last:
                save_checkpoint(output / LAST, cfg, model, epoch, optimizer=optimizer.state_dict(),
                                scaler=scaler.state_dict(), center_losses=center_losses.state_dict())
    return records


def _train_epoch(cfg: CfgNode, model: DeMo, center_losses: nn.ModuleList, loader: DataLoader,
                 optimizers: Sequence[torch.optim.Optimizer], scaler: torch.amp.GradScaler, precision: torch.dtype | None,
                 epoch: int) -> dict[str, float]:
    """One pass over the loader → loss, accuracy, lr of the fastest group."""
    device = next(model.parameters()).device
    model.train()
    meter = Meter()
    bar = progress(meter.timed(batches(loader)), f"epoch {epoch}/{cfg.SOLVER.MAX_EPOCHS}", len(loader), unit="batch")
    for iteration, (images, labels, cameras) in enumerate(bar, start=1):
        images = {modality: image.to(device, non_blocking=True) for modality, image in images.items()}
        labels = labels.to(device, non_blocking=True)
        with autocast(device, precision):
            outputs = model(images, cameras.to(device, non_blocking=True))
            loss = total_loss(cfg, outputs, labels, model.pair_weights, center_losses)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        meter.update(loss, outputs[0], labels)
        if iteration == 1 or iteration % cfg.SOLVER.LOG_PERIOD == 0:
            means = meter.means()
            _check_finite(means["loss"], epoch)
            bar.set_postfix_str(f"loss {means['loss']:.3f}, accuracy {means['accuracy']:.1%}, "
                                f"{means['rate']:.0f} triplets/s")
    means = meter.means()
    _check_finite(means["loss"], epoch)
    rate = max(group["lr"] for group in optimizers[0].param_groups)
    logger.info("epoch %d: loss %.3f, accuracy %.1f %%, lr %.2e, %.0f triplets/s, waited %.1f %% for data", epoch,
                means["loss"], 100 * means["accuracy"], rate, means["rate"], 100 * means["waited"])
    return {"loss": means["loss"], "accuracy": means["accuracy"], "lr": rate}


def _check_finite(loss: float, epoch: int) -> None:
    if not math.isfinite(loss):
        raise UserError(f"The loss became {loss} in epoch {epoch}; lower SOLVER.BASE_LR or set SOLVER.AMP to off.")


def _report(records: list[dict], output: Path, board: SummaryWriter) -> None:
    """The last record to metrics.json (written whole), TensorBoard and the log."""
    record = records[-1]
    write_json(output / METRICS, records)
    for name in ("loss", "accuracy", "lr"):
        if name in record:
            board.add_scalar(f"train/{name}", record[name], record["epoch"])
    for pattern, values in record.get("patterns", {}).items():
        for name, value in values.items():
            board.add_scalar(f"pattern_{pattern}/{name}", value, record["epoch"])
    if "patterns" in record:
        logger.info("epoch %d%s\n%s", record["epoch"], "" if record["epoch"] else " (untrained)", as_table(record["patterns"]))
