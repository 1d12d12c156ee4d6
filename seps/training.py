"""Training of SEPS (docs/seps.md)."""
from collections.abc import Iterator, Mapping

import torch
from yacs.config import CfgNode

from demo_sdtps.engine.distributed import gathered, replicated
from demo_sdtps.engine.evaluation.reports import percent_table
from demo_sdtps.engine.optim import grouped
from demo_sdtps.engine.run.data import Fingerprint
from demo_sdtps.engine.runtime import autocast
from demo_sdtps.engine.trainer import Evaluation, Trainer
from demo_sdtps.engine.transfer import to_device
from demo_sdtps.seps import SEPSLoss
from demo_sdtps.seps.captions import CaptionBatch, CaptionLoader, caption_batches
from demo_sdtps.seps.evaluation import RetrievalData, evaluate_retrieval
from demo_sdtps.seps.image_text import ImageTexts
from demo_sdtps.seps.model import SEPS

TOWERS = ("image_tower.tower.", "text_tower.tower.")


class SEPSTrainer(Trainer[SEPS, CaptionBatch]):
    """Trains SEPS; the dev split is evaluated when an evaluation is due, the test split after the last epoch.

    best.pth is the epoch with the largest rSum on the dev split.
    """

    unit = "captions"

    def __init__(self, cfg: CfgNode, model: SEPS, loader: CaptionLoader, dev: RetrievalData, test: RetrievalData,
                 data: Fingerprint):
        super().__init__(cfg, model, loader, [dev.loader, test.loader], [make_optimizer(cfg, model)], data)
        self.network = replicated(model)
        self.caption_loader, self.losses, self.dev, self.test = loader, make_losses(cfg), dev, test

    def begin_epoch(self, epoch: int) -> None:
        set_rates(self.cfg, self.optimizers[0], epoch)
        self.losses.set_max_violation(epoch > self.cfg.SOLVER.ALL_NEGATIVES_EPOCHS)

    def batches(self) -> Iterator[CaptionBatch]:
        return caption_batches(self.caption_loader)

    def loss(self, batch: CaptionBatch) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
        images, captions, image_ids = (to_device(part, self.device) for part in (batch.images, batch.captions, batch.image_ids))
        long_captions = None if batch.long_captions is None else to_device(batch.long_captions, self.device)
        with autocast(self.device, self.precision):
            similarities, masks = self.network(images, captions, batch.lengths, long_captions, batch.long_lengths)
        # Each of several processes has the rows of its images, and computes the loss of the whole batch.
        similarities, image_ids = gathered(similarities.float()), gathered(image_ids)
        loss, align, ratio = self.losses(similarities, _ratios(masks), image_ids)
        count = len(similarities)
        return loss, count, {"align": align.detach() * count, "ratio": ratio.detach() * count}

    def evaluate(self, epoch: int) -> Evaluation:
        splits = {"dev": self.dev} | ({"test": self.test} if epoch == self.cfg.SOLVER.MAX_EPOCHS else {})
        found = {split: evaluate_retrieval(self.model, data) for split, data in splits.items()}
        scalars = {f"{split}/{name}": value for split, measures in found.items() for name, value in measures.items()}
        return Evaluation(found, found["dev"]["rSum"], scalars, percent_table(found))

    def describe(self, means: Mapping[str, float]) -> str:
        return f"loss {means['loss']:.3f} (alignment {means['align']:.3f}, ratio {means['ratio']:.5f})"


def _ratios(masks: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """In place of each mask the means of all processes' parts of it, (world size,): their mean is that of the whole mask."""
    if isinstance(masks, tuple):
        return tuple(gathered(mask.mean().unsqueeze(0)) for mask in masks)
    return gathered(masks.mean().unsqueeze(0))


def data_texts(splits: Mapping[str, ImageTexts], encoded: Mapping[str, CaptionLoader | RetrievalData],
               ) -> dict[str, list[tuple[str, str]]]:
    """What a run reads of each caption, its image and its tokens among it, and of each long caption, by split and kind."""
    found = {}
    for name, split in splits.items():
        captions = zip(split.image_of, encoded[name].captions, split.captions, strict=True)
        found[f"{name} captions"] = [(f"line {line}", repr(caption)) for line, caption in enumerate(captions, 1)]
        if split.long_captions:
            texts = zip(encoded[name].long_captions or (), split.long_captions, strict=True)
            found[f"{name} long captions"] = [(f"image {image}", repr(text)) for image, text in enumerate(texts, 1)]
    return found


def make_optimizer(cfg: CfgNode, model: SEPS) -> torch.optim.Optimizer:
    """AdamW over all parameters, the towers at SOLVER.TOWER_LR_FACTOR times SOLVER.BASE_LR."""
    solver = cfg.SOLVER
    groups = grouped(model, lambda name: (solver.BASE_LR * (solver.TOWER_LR_FACTOR if name.startswith(TOWERS) else 1.0),
                                          solver.WEIGHT_DECAY))
    return torch.optim.AdamW(groups, fused=True)


def make_losses(cfg: CfgNode) -> SEPSLoss:
    """The loss of SOLVER, which counts all negatives until `set_max_violation(True)`."""
    solver = cfg.SOLVER
    return SEPSLoss(margin=solver.MARGIN, target_ratio=solver.TARGET_RATIO, ratio_weight=solver.RATIO_WEIGHT,
                    lambda_sparse=solver.LAMBDA_SPARSE, lambda_dense=solver.LAMBDA_DENSE)


def set_rates(cfg: CfgNode, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Set the learning rates of an epoch, counted from 1: times SOLVER.GAMMA for each of SOLVER.STEPS reached.

    STEPS are the reference's, which counts epochs from 0.
    """
    factor = cfg.SOLVER.GAMMA ** sum(step <= epoch - 1 for step in cfg.SOLVER.STEPS)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * factor
