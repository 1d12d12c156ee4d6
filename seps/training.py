"""Training of SEPS (docs/seps.md): images with captions, their loss, and the searches that a run records."""
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.engine.checkpoint import save_model
from demo_sdtps.engine.loop import Training, run_training
from demo_sdtps.engine.optim import grouped
from demo_sdtps.engine.resume import Resumed
from demo_sdtps.engine.retrieval import as_table
from demo_sdtps.engine.runtime import autocast
from demo_sdtps.seps import SEPSLoss
from demo_sdtps.seps.captions import CaptionBatch, caption_batches
from demo_sdtps.seps.evaluation import RetrievalData, evaluate
from demo_sdtps.seps.model import SEPS

TOWERS = ("image_tower.tower.", "text_tower.tower.")


def train(cfg: CfgNode, model: SEPS, loader: DataLoader, dev: RetrievalData, test: RetrievalData, output: Path,
          resumed: Resumed | None = None) -> list[dict]:
    """Train `model` (on its device), evaluate it on the dev split every SOLVER.EVAL_PERIOD epochs and on the test split at the
    end, and keep the run's files in `output`; best.pth is the epoch with the largest rSum on the dev split.

    Returns the records of metrics.json: one per epoch; raises as `run_training`.
    """
    return run_training(SEPSTraining(cfg, model, loader, dev, test), output, resumed)


class SEPSTraining(Training):
    """Captions with their images; the loss has the alignment and the ratio of kept patches as its parts."""

    unit = "captions"
    measured = ("loss", "align", "ratio", "lr")
    save = staticmethod(save_model)

    def __init__(self, cfg: CfgNode, model: SEPS, loader: DataLoader, dev: RetrievalData, test: RetrievalData):
        super().__init__(cfg, model, loader, [dev.loader, test.loader], [make_optimizer(cfg, model)], {})
        self.losses, self.dev, self.test = make_losses(cfg), dev, test

    def begin(self, epoch: int) -> None:
        set_rates(self.cfg, self.optimizers[0], epoch)
        self.losses.set_max_violation(epoch > self.cfg.SOLVER.ALL_NEGATIVES_EPOCHS)

    def batches(self) -> Iterator[CaptionBatch]:
        return caption_batches(self.loader)

    def step(self, batch: CaptionBatch) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
        with autocast(self.device, self.precision):
            similarities, masks = self.model(*_inputs(batch, self.device))
        loss, align, ratio = self.losses(similarities.float(), masks, batch.image_ids.to(self.device))
        count = len(batch.images)
        return loss, count, {"align": align.detach() * count, "ratio": ratio.detach() * count}

    def evaluate(self, epoch: int) -> dict[str, object]:
        if epoch == 0 or not self.is_due(epoch):
            return {}
        found = {"dev": evaluate(self.model, self.dev)}
        return found | ({"test": evaluate(self.model, self.test)} if epoch == self.cfg.SOLVER.MAX_EPOCHS else {})

    def score(self, record: Mapping) -> float | None:
        return record["dev"]["rSum"] if "dev" in record else None

    def scalars(self, record: Mapping) -> dict[str, float]:
        return {f"{split}/{name}": value for split, measures in _evaluated(record).items() for name, value in measures.items()}

    def table(self, record: Mapping) -> str:
        return as_table(_evaluated(record)) if "dev" in record else ""

    def brief(self, means: Mapping[str, float]) -> str:
        return f"loss {means['loss']:.3f}, {means['rate']:.0f} captions/s"

    def summary(self, means: Mapping[str, float]) -> str:
        return f"loss {means['loss']:.3f} (alignment {means['align']:.3f}, ratio {means['ratio']:.5f})"


def make_optimizer(cfg: CfgNode, model: SEPS) -> torch.optim.Optimizer:
    """AdamW over all parameters: the towers at TOWER_LR_FACTOR times the learning rate of what is new."""
    solver = cfg.SOLVER
    groups = grouped(model, lambda name: (solver.BASE_LR * (solver.TOWER_LR_FACTOR if name.startswith(TOWERS) else 1.0),
                                          solver.WEIGHT_DECAY))
    return torch.optim.AdamW(groups, fused=True)


def make_losses(cfg: CfgNode) -> SEPSLoss:
    """The loss of SOLVER, with all negatives at first."""
    solver = cfg.SOLVER
    return SEPSLoss(margin=solver.MARGIN, target_ratio=solver.TARGET_RATIO, ratio_weight=solver.RATIO_WEIGHT,
                    lambda_sparse=solver.LAMBDA_SPARSE, lambda_dense=solver.LAMBDA_DENSE)


def rate_factor(cfg: CfgNode, epoch: int) -> float:
    """What the learning rates are multiplied by in an epoch, counted from 1: GAMMA once for each of STEPS that has come.

    STEPS are the reference's, which counts epochs from 0.
    """
    return cfg.SOLVER.GAMMA ** sum(step <= epoch - 1 for step in cfg.SOLVER.STEPS)


def set_rates(cfg: CfgNode, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Give every group of the optimiser its learning rate of an epoch, counted from 1."""
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * rate_factor(cfg, epoch)


def _inputs(batch: CaptionBatch, device: torch.device) -> tuple[torch.Tensor | None, ...]:
    """Images, captions, lengths, and long captions with theirs where there are any, on the device."""
    tensors = (batch.images, batch.captions, batch.lengths, batch.long_captions, batch.long_lengths)
    return tuple(tensor if tensor is None else tensor.to(device, non_blocking=True) for tensor in tensors)


def _evaluated(record: Mapping) -> dict[str, dict[str, float]]:
    return {split: record[split] for split in ("dev", "test") if split in record}
