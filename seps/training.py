"""Training of SEPS (docs/seps.md)."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import percent_table
from demo_sdtps.runtime.device import set_seed
from demo_sdtps.training.loop import Loss, fit
from demo_sdtps.training.optim import group_parameters
from demo_sdtps.training.run import LAST, Evaluation, digest_lines, file_lines, open_run
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
from seps.schema import SEPS_SCHEMA

TOWERS = ("image_tower.tower.", "text_tower.tower.")


def train(cfg: CfgNode, overwrite: bool = False) -> None:
    """Train SEPS by a configuration of SEPS_SCHEMA. A run in OUTPUT_DIR is replaced with `overwrite`, and continued by
    RESUME."""
    with open_run(cfg, overwrite, SEPS_SCHEMA) as run:
        if run.is_finished:
            return
        if cfg.TEST.WEIGHT:
            raise UserError(
                f"TEST.WEIGHT is {cfg.TEST.WEIGHT}, but seps train starts from MODEL.PRETRAIN_PATH_T alone; leave it out."
            )
        splits = evaluation.read_caption_splits(cfg)
        tokenizer = load_tokenizer(cfg)
        set_seed(cfg.SOLVER.SEED)
        model, origin = make_seps(cfg, pretrained=run.state is None)
        tokens = {name: encode_captions(cfg, split, tokenizer) for name, split in splits.items()}
        data = {
            name: evaluation.make_retrieval_data(cfg, splits[name], tokens[name], folds)
            for name, folds in {"dev": 1, "test": cfg.TEST.FOLDS}.items()
        }
        loader = caption_loader(cfg, splits["train"])
        loss = BatchLoss(cfg, model.to(run.device))
        optimizer = make_seps_optimizer(cfg, model)

        def begin_epoch(epoch: int) -> None:
            set_rates(cfg, optimizer, epoch)
            # All negatives count in the first epochs, then the hardest alone.
            loss.losses.set_max_violation(epoch > cfg.SOLVER.ALL_NEGATIVES_EPOCHS)

        sizes = [
            f"{len(split.captions)} captions of {len(split.paths)} images to {name}"
            for name, split in splits.items()
        ]
        kind = "with" if splits["train"].long_captions else "without"
        if run.state is not None:
            origin = f"the weights are those of {run.output / LAST}"
        notes = [
            f"{cfg.DATASETS.NAMES}: {', '.join(sizes)}, {kind} long captions",
            origin,
            *evaluation.caption_warnings(splits),
        ]
        run.begin(model, [optimizer], digest_lines(data_lines(cfg, splits, tokens)), notes)
        fit(
            run,
            loader,
            loss,
            begin_epoch,
            partial(evaluate, cfg, model, data),
            partial(caption_batches, tokens=tokens["train"]),
        )


class BatchLoss:
    """The loss of a batch of captions, with its alignment and ratio."""

    def __init__(self, cfg: CfgNode, model: SEPS):
        self.model, self.losses = model, make_losses(cfg)

    def __call__(self, batch: CaptionBatch) -> Loss:
        similarities, masks = self.model(batch.images, *chain(*batch.texts))
        loss, align, ratio = self.losses(similarities.float(), masks, batch.image_ids)
        count = len(similarities)
        return Loss(loss, count, {"align": align.detach() * count, "ratio": ratio.detach() * count})


def evaluate(
    cfg: CfgNode, model: SEPS, data: Mapping[str, evaluation.RetrievalData], epoch: int
) -> Evaluation:
    """The evaluation after an epoch on the dev split, whose rSum is the score, and after the last one on the test split too."""
    names = ("dev", "test") if epoch == cfg.SOLVER.MAX_EPOCHS else ("dev",)
    metrics = {name: evaluation.evaluate_retrieval(model, data[name]) for name in names}
    scalars = {
        f"{name}/{measure}": value for name in names for measure, value in metrics[name].items()
    }
    return Evaluation(metrics, metrics["dev"]["rSum"], scalars, percent_table(metrics, scale=1))


def data_lines(
    cfg: CfgNode, splits: Mapping[str, ImageTexts], tokens: Mapping[str, Tokens]
) -> Iterator[str]:
    """A line for each image file that a run reads, and for the captions of each split, with their images and tokens."""
    for name, split in splits.items():
        yield from file_lines(cfg.DATASETS.ROOT_DIR, split.paths)
        yield repr((split.image_of, split.captions, split.long_captions, tokens[name]))


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
