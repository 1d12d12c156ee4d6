"""Training of SEPS (docs/seps.md)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import percent_table
from demo_sdtps.runtime.device import autocast, set_seed
from demo_sdtps.runtime.distributed import all_gather, wrap_ddp
from demo_sdtps.seps import evaluation
from demo_sdtps.seps.captions import (
    CaptionBatch,
    Tokens,
    caption_batches,
    caption_loader,
    encode_captions,
)
from demo_sdtps.seps.image_text import ImageTexts
from demo_sdtps.seps.losses import SEPSLoss
from demo_sdtps.seps.model import SEPS, make_seps
from demo_sdtps.seps.towers import load_tokenizer
from demo_sdtps.training.optim import group_parameters
from demo_sdtps.training.resume import Resumed, digest_data
from demo_sdtps.training.trainer import Evaluation, Loss, Trainer

TOWERS = ("image_tower.tower.", "text_tower.tower.")


class SEPSTrainer(Trainer[SEPS, CaptionBatch]):
    """Trains SEPS; the dev split is evaluated when an evaluation is due, the test split after the last epoch.

    best.pth is the epoch with the largest rSum on the dev split.
    """

    unit = "captions"

    def __init__(
        self,
        cfg: CfgNode,
        model: SEPS,
        loader: DataLoader,
        tokens: Tokens,
        dev: evaluation.RetrievalData,
        test: evaluation.RetrievalData,
        digest: Mapping[str, str],
        notes: Sequence[str] = (),
    ):
        super().__init__(cfg, model, loader, [make_seps_optimizer(cfg, model)], digest, notes=notes)
        self.network = wrap_ddp(model)
        self.tokens, self.losses, self.dev, self.test = tokens, make_losses(cfg), dev, test

    def begin_epoch(self, epoch: int) -> None:
        set_rates(self.cfg, self.optimizers[0], epoch)
        self.losses.set_max_violation(epoch > self.cfg.SOLVER.ALL_NEGATIVES_EPOCHS)

    def batches(self) -> Iterator[CaptionBatch]:
        return caption_batches(self.loader, self.tokens)

    def loss(self, batch: CaptionBatch) -> Loss:
        batch = batch.to(self.device)
        texts = batch.captions, batch.lengths, batch.long_captions, batch.long_lengths
        with autocast(self.device, self.precision):
            similarities, masks = self.network(batch.images, *texts)
        # Each of several processes has the rows of its images, and computes the loss of the whole batch.
        similarities, image_ids = all_gather(similarities.float()), all_gather(batch.image_ids)
        loss, align, ratio = self.losses(similarities, _ratios(masks), image_ids)
        count = len(similarities)
        return loss, count, {"align": align.detach() * count, "ratio": ratio.detach() * count}

    def evaluate(self, epoch: int) -> Evaluation:
        splits = {"dev": self.dev}
        if epoch == self.cfg.SOLVER.MAX_EPOCHS:
            splits["test"] = self.test
        metrics = {
            split: evaluation.evaluate_retrieval(self.model, data) for split, data in splits.items()
        }
        scalars = {
            f"{split}/{name}": value
            for split, measures in metrics.items()
            for name, value in measures.items()
        }
        return Evaluation(metrics, metrics["dev"]["rSum"], scalars, percent_table(metrics))

    def describe(self, means: Mapping[str, float]) -> str:
        parts = f"alignment {means['align']:.3f}, ratio {means['ratio']:.5f}"
        return f"loss {means['loss']:.3f} ({parts})"


def _ratios(masks: torch.Tensor | tuple[torch.Tensor, ...]) -> Any:
    """In place of each mask the means of all processes' parts of it, (world size,): their mean is that of the whole mask."""
    if isinstance(masks, tuple):
        return tuple(map(_ratios, masks))
    return all_gather(masks.mean().unsqueeze(0))


def make_seps_trainer(cfg: CfgNode, device: torch.device, resumed: Resumed | None) -> SEPSTrainer:
    """Trainer of the data set, towers and weights of `cfg`, on `device`."""
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
    dev = evaluation.make_retrieval_data(cfg, splits["dev"], tokens["dev"])
    test = evaluation.make_retrieval_data(cfg, splits["test"], tokens["test"], cfg.TEST.FOLDS)
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
    paths = {f"{name} images": split.paths for name, split in splits.items()}
    texts = data_texts(splits, tokens)
    digest = digest_data(cfg.DATASETS.ROOT_DIR, paths, texts)
    return SEPSTrainer(cfg, model.to(device), loader, tokens["train"], dev, test, digest, notes)


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

    def settings_of(name: str) -> tuple[float, float]:
        factor = solver.TOWER_LR_FACTOR if name.startswith(TOWERS) else 1.0
        return solver.BASE_LR * factor, solver.WEIGHT_DECAY

    return torch.optim.AdamW(group_parameters(model, settings_of), fused=True)


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
