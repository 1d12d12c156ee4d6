"""Training of SEPS (docs/seps.md)."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import percent_table
from demo_sdtps.runtime.device import set_seed
from demo_sdtps.runtime.distributed import all_gather, wrap_ddp
from demo_sdtps.training.optim import group_parameters
from demo_sdtps.training.output import Resumed
from demo_sdtps.training.resume import describe_files, digest_lines
from demo_sdtps.training.run import Evaluation, Loss, Task
from seps import evaluation
from seps.captions import (
    CaptionBatch,
    ImageTexts,
    Tokens,
    caption_batches,
    caption_loader,
    encode_captions,
)
from seps.losses import SEPSLoss
from seps.model import SEPS, load_tokenizer, make_seps

TOWERS = ("image_tower.tower.", "text_tower.tower.")


class SEPSTask:
    """Loss and evaluation of SEPS: the dev split when an evaluation is due, the test split after the last epoch. best.pth is
    the epoch with the largest rSum on the dev split."""

    def __init__(self, cfg: CfgNode, model: SEPS, splits: Mapping[str, evaluation.RetrievalData]):
        self.cfg, self.model, self.splits = cfg, model, splits
        self.network, self.losses = wrap_ddp(model), make_losses(cfg)
        self.optimizer = make_seps_optimizer(cfg, model)

    def begin_epoch(self, epoch: int) -> None:
        set_rates(self.cfg, self.optimizer, epoch)
        self.losses.set_max_violation(epoch > self.cfg.SOLVER.ALL_NEGATIVES_EPOCHS)

    def loss(self, batch: CaptionBatch) -> Loss:
        similarities, masks = self.network(batch.images, *chain(*batch.texts))
        # Each of several processes has the rows of its images, and computes the loss of the whole batch.
        similarities, image_ids = all_gather(similarities.float()), all_gather(batch.image_ids)
        loss, align, ratio = self.losses(similarities, _ratios(masks), image_ids)
        count = len(similarities)
        sums = {"align": align.detach() * count, "ratio": ratio.detach() * count}
        return Loss(loss, count, sums)

    def evaluate(self, epoch: int) -> Evaluation:
        names = ("dev", "test") if epoch == self.cfg.SOLVER.MAX_EPOCHS else ("dev",)
        metrics = {
            name: evaluation.evaluate_retrieval(self.model, self.splits[name]) for name in names
        }
        scalars = {
            f"{split}/{name}": value
            for split, measures in metrics.items()
            for name, value in measures.items()
        }
        return Evaluation(metrics, metrics["dev"]["rSum"], scalars, percent_table(metrics))


def _ratios(masks: torch.Tensor | tuple[torch.Tensor, ...]) -> Any:
    """In place of each mask the means of all processes' parts of it, (world size,): their mean is that of the whole mask."""
    if isinstance(masks, tuple):
        return tuple(map(_ratios, masks))
    return all_gather(masks.mean().unsqueeze(0))


def make_seps_task(cfg: CfgNode, device: torch.device, resumed: Resumed | None) -> Task:
    """Data set, towers, weights and loss of `cfg`, on `device`."""
    if cfg.TEST.WEIGHT:
        raise UserError(
            f"TEST.WEIGHT is {cfg.TEST.WEIGHT}, but seps train starts from MODEL.PRETRAIN_PATH_T alone; leave it out."
        )
    splits = evaluation.read_caption_splits(cfg)
    tokenizer = load_tokenizer(cfg)
    set_seed(cfg.SOLVER.SEED)
    model, origin = make_seps(cfg, pretrained=not resumed)
    tokens = {name: encode_captions(cfg, split, tokenizer) for name, split in splits.items()}
    loader = caption_loader(cfg, splits["train"])
    folds = {"dev": 1, "test": cfg.TEST.FOLDS}
    data = {
        name: evaluation.make_retrieval_data(cfg, splits[name], tokens[name], count)
        for name, count in folds.items()
    }
    sizes = [
        f"{len(split.captions)} captions of {len(split.paths)} images to {name}"
        for name, split in splits.items()
    ]
    kind = "with" if splits["train"].long_captions else "without"
    notes = [
        f"{cfg.DATASETS.NAMES}: {', '.join(sizes)}, {kind} long captions",
        f"the weights are those of {resumed.path}" if resumed else origin,
        *evaluation.caption_warnings(splits),
    ]
    lines = data_texts(splits, tokens)
    for name, split in splits.items():
        lines[f"{name} images"] = describe_files(cfg.DATASETS.ROOT_DIR, split.paths)
    seps = SEPSTask(cfg, model.to(device), data)
    return Task(
        model=model,
        loader=loader,
        batches=partial(caption_batches, loader, tokens["train"]),
        loss=seps.loss,
        evaluate=seps.evaluate,
        optimizers=[seps.optimizer],
        begin_epoch=seps.begin_epoch,
        describe=lambda means: (
            f"loss {means['loss']:.3f} (alignment {means['align']:.3f}, ratio {means['ratio']:.5f})"
        ),
        unit="captions",
        digest=digest_lines(lines),
        notes=notes,
    )


def data_texts(
    splits: Mapping[str, ImageTexts], tokens: Mapping[str, Tokens]
) -> dict[str, Iterable[str]]:
    """What a run reads of each caption, its image and its tokens among it, and of each long caption, by split and kind."""
    texts: dict[str, Iterable[str]] = {}
    for name, split in splits.items():
        captions = zip(split.image_of, tokens[name].captions, split.captions, strict=True)
        texts[f"{name} captions"] = map(repr, captions)
        if long := tokens[name].long_captions:
            long_captions = zip(long, split.long_captions or (), strict=True)
            texts[f"{name} long captions"] = map(repr, long_captions)
    return texts


def make_seps_optimizer(cfg: CfgNode, model: SEPS) -> torch.optim.Optimizer:
    """AdamW over all parameters, the towers at SOLVER.TOWER_LR_FACTOR times SOLVER.BASE_LR."""
    solver = cfg.SOLVER

    def rate_and_decay(name: str) -> tuple[float, float]:
        factor = solver.TOWER_LR_FACTOR if name.startswith(TOWERS) else 1.0
        return solver.BASE_LR * factor, solver.WEIGHT_DECAY

    return torch.optim.AdamW(group_parameters(model, rate_and_decay), fused=True)


def make_losses(cfg: CfgNode) -> SEPSLoss:
    """The loss of SOLVER, which counts all negatives until `set_max_violation(True)`."""
    names = ("margin", "target_ratio", "ratio_weight", "lambda_sparse", "lambda_dense")
    return SEPSLoss(**{name: cfg.SOLVER[name.upper()] for name in names})


def set_rates(cfg: CfgNode, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Set the learning rates of an epoch, from 1: times GAMMA for each of STEPS reached, which count epochs from 0."""
    factor = cfg.SOLVER.GAMMA ** sum(step <= epoch - 1 for step in cfg.SOLVER.STEPS)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * factor
