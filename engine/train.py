"""Training of re-identification (docs/method.md): identity batches, their loss, and the rankings that a run records."""
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.datasets.loaders import Batch, batches
from demo_sdtps.engine.checkpoint import save_checkpoint
from demo_sdtps.engine.distributed import gathered, replicated
from demo_sdtps.engine.evaluate import TestData, as_record, as_table, evaluate
from demo_sdtps.engine.loop import Training, loss_parts, run_training
from demo_sdtps.engine.optim import make_center_optimizer, make_optimizer, make_scheduler
from demo_sdtps.engine.resume import Resumed
from demo_sdtps.engine.runtime import autocast
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.losses import make_center_losses, total_loss


def train(cfg: CfgNode, model: DeMo, loader: DataLoader, test_data: TestData, output: Path,
          resumed: Resumed | None = None) -> list[dict]:
    """Train `model` (on its device), evaluate it every SOLVER.EVAL_PERIOD epochs, and keep the run's files in `output`.

    Returns the records of metrics.json: one per epoch, with the rankings where it was evaluated; raises as `run_training`.
    """
    return run_training(DeMoTraining(cfg, model, loader, test_data), output, resumed)


class DeMoTraining(Training):
    """Identities and, where MODEL.METRIC_LOSS_TYPE has them, centers that train beside the model."""

    unit = "triplets"
    measured = ("loss", "accuracy", "lr")
    save = staticmethod(save_checkpoint)

    def __init__(self, cfg: CfgNode, model: DeMo, loader: DataLoader, test_data: TestData):
        device = next(model.parameters()).device
        optimizer = make_optimizer(cfg, model)
        centers = make_center_losses(cfg, model.num_class, list(model.widths.values())).to(device)
        optimizers = [optimizer, *([make_center_optimizer(cfg, centers)] if centers else ())]
        super().__init__(cfg, model, loader, [test_data.loader], optimizers, {"center_losses": centers})
        self.network = replicated(model)
        self.test_data = test_data
        self.scheduler = make_scheduler(cfg, optimizer)

    def begin(self, epoch: int) -> None:
        self.scheduler.step(epoch)

    def batches(self) -> Iterator[Batch]:
        return batches(self.loader)

    def step(self, batch: Batch) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
        images, labels, cameras = batch
        images = {modality: image.to(self.device, non_blocking=True) for modality, image in images.items()}
        labels = labels.to(self.device, non_blocking=True)
        with autocast(self.device, self.precision):
            outputs = self.network(images, cameras.to(self.device, non_blocking=True))
            # Of several processes each has the loss of the whole batch, and mines its triplets there.
            outputs = [gathered(part) if isinstance(part, torch.Tensor) else part for part in outputs]
            labels = gathered(labels)
            loss, parts = total_loss(self.cfg, outputs, labels, self.model.pair_weights, self.modules["center_losses"])
        sums = {f"loss/{name}": part * len(labels) for name, part in parts.items()}
        return loss, len(labels), {"accuracy": (outputs[0].detach().argmax(dim=1) == labels).sum(), **sums}

    def evaluate(self, epoch: int) -> dict[str, object]:
        if not (self.is_due(epoch) if epoch else self.cfg.SOLVER.EVAL_UNTRAINED):
            return {}
        return {"patterns": as_record(evaluate(self.cfg, self.model, self.test_data))}

    def score(self, record: Mapping) -> float | None:
        return record["patterns"][str(self.cfg.TEST.RETURN_PATTERN)]["mAP"] if "patterns" in record else None

    def scalars(self, record: Mapping) -> dict[str, float]:
        return {f"pattern_{pattern}/{name}": value for pattern, values in record.get("patterns", {}).items()
                for name, value in values.items()}

    def table(self, record: Mapping) -> str:
        return as_table(record["patterns"]) if "patterns" in record else ""

    def brief(self, means: Mapping[str, float]) -> str:
        return f"loss {means['loss']:.3f}, accuracy {means['accuracy']:.1%}, {means['rate']:.0f} triplets/s"

    def summary(self, means: Mapping[str, float]) -> str:
        parts = ", ".join(f"{name} {value:.3f}" for name, value in loss_parts(means).items())
        return f"loss {means['loss']:.3f} ({parts}), accuracy {100 * means['accuracy']:.1f} %"
