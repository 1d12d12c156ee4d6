"""Training of re-identification (docs/method.md)."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.scores import MASK, reads_masks
from demo_sdtps.datasets import (
    SPLITS,
    Sample,
    data_name,
    find_reader,
    identity_labels,
    read_splits,
)
from demo_sdtps.datasets.base import VALIDATION
from demo_sdtps.datasets.images import verify
from demo_sdtps.datasets.loaders import Batch, batches, train_loader
from demo_sdtps.datasets.masks import existing_masks
from demo_sdtps.datasets.pairing import completeness
from demo_sdtps.evaluation.protocol import TestData, data_warnings, evaluate_reid, make_test_data
from demo_sdtps.evaluation.tables import read_records, reid_record, reid_table
from demo_sdtps.modeling import DeMo, make_model
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint, start_from
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.heads import TrainingOutput
from demo_sdtps.modeling.losses import make_center_losses, total_loss
from demo_sdtps.runtime.device import autocast, choose_device, set_seed
from demo_sdtps.runtime.distributed import all_gather, check_launch, world_size, wrap_ddp
from demo_sdtps.runtime.graphs import Recording
from demo_sdtps.training.command import train as run_training
from demo_sdtps.training.optim import make_center_optimizer, make_optimizer, make_scheduler
from demo_sdtps.training.output import LAST
from demo_sdtps.training.resume import Resumed, digest_data
from demo_sdtps.training.trainer import PART, Evaluation, Loss, Trainer


class ReIDTrainer(Trainer[DeMo, Batch]):
    """Trains DeMo and, where MODEL.METRIC_LOSS_TYPE has them, the centers of the center losses.

    best.pth is the epoch with the largest mAP of TEST.RETURN_PATTERN: of `validation` where it is there, else of `test_data`.
    """

    unit = "triplets"

    def __init__(
        self,
        cfg: CfgNode,
        model: DeMo,
        loader: DataLoader,
        test_data: TestData,
        digest: Mapping[str, str],
        notes: Sequence[str] = (),
        validation: TestData | None = None,
    ):
        self.centers = make_center_losses(cfg, model.num_class, list(model.layout.widths.values()))
        self.centers.to(next(model.parameters()).device)
        optimizers = [make_optimizer(cfg, model)]
        if self.centers:
            optimizers.append(make_center_optimizer(cfg, self.centers))
        auxiliary = {"center_losses": self.centers}
        about = {
            "num_class": model.num_class,
            "camera_num": model.camera_num,
            "data": data_name(cfg, model.num_class),
        }
        super().__init__(cfg, model, loader, optimizers, digest, auxiliary, about, notes)
        self.network = wrap_ddp(model)
        self.data = {"patterns": test_data} | ({VALIDATION: validation} if validation else {})
        self.scheduler = make_scheduler(cfg, optimizers[0])
        is_recorded = cfg.MODEL.COMPILE and self.device.type == "cuda" and world_size() == 1
        self.recording: Recording[Batch, Loss] | None = Recording() if is_recorded else None

    def begin_epoch(self, epoch: int) -> None:
        self.scheduler.step(epoch)

    def batches(self) -> Iterator[Batch]:
        return batches(self.loader)

    def gradients(self, batch: Batch) -> Loss:
        batch, compute = batch.to(self.device), super().gradients
        return self.recording.run(compute, batch) if self.recording else compute(batch)

    def loss(self, batch: Batch) -> Loss:
        labels = batch.labels
        with autocast(self.device, self.precision):
            output: TrainingOutput = self.network(
                batch.images, batch.cameras, foreground=batch.mask
            )
            # Each of several processes computes the loss of the whole batch, and mines its triplets there.
            output, labels = gather_output(output), all_gather(labels)
            loss, terms = total_loss(
                self.cfg, output, labels, self.model.head_weights, self.centers
            )
        predicted = next(iter(output.logits.values())).detach().argmax(dim=1)
        sums = {f"{PART}{name}": term * len(labels) for name, term in terms.items()}
        return loss, len(labels), {"accuracy": (predicted == labels).sum(), **sums}

    def is_due(self, epoch: int) -> bool:
        return super().is_due(epoch) if epoch else self.cfg.SOLVER.EVAL_UNTRAINED

    def evaluate(self, epoch: int) -> Evaluation:
        test = self.cfg.TEST
        records = {
            name: reid_record(evaluate_reid(self.cfg, self.model, data)[test.MISS])
            for name, data in self.data.items()
        }
        scalars = {
            f"{name.removesuffix('s')}_{pattern}/{measure}": value
            for name, record in records.items()
            for pattern, row in record.items()
            for measure, value in row.items()
        }
        table, *tables = map(reid_table, records.values())
        table = "\n".join([table, *(f"{VALIDATION}\n{other}" for other in tables)])
        *_, chosen_by = records.values()
        return Evaluation(records, chosen_by[str(test.RETURN_PATTERN)]["mAP"], scalars, table)

    def describe(self, means: Mapping[str, float]) -> str:
        return f"loss {means['loss']:.3f}, accuracy {100 * means['accuracy']:.1f} %"


def gather_output(output: TrainingOutput) -> TrainingOutput:
    """The outputs of all processes, one batch."""
    return TrainingOutput(
        {name: all_gather(logits) for name, logits in output.logits.items()},
        {name: all_gather(feature) for name, feature in output.features.items()},
        None if output.auxiliary is None else all_gather(output.auxiliary),
    )


def make_reid_trainer(cfg: CfgNode, device: torch.device, resumed: Resumed | None) -> ReIDTrainer:
    """Trainer of the data set, model and weights of `cfg`, on `device`."""
    if not find_reader(cfg).labelled:
        raise UserError(
            f"DATASETS.NAMES is {cfg.DATASETS.NAMES}, whose images have no labels to train by; give "
            "DATASETS.NAMES Folder in its place, whose names of images have labels, or CSV, a table (docs/own_data.md)."
        )
    splits = read_splits(cfg, (*SPLITS, VALIDATION) if cfg.DATASETS.VALIDATION else SPLITS)
    samples = [sample for split in splits.values() for sample in split]
    if cfg.DATASETS.VERIFY:
        verify(path for sample in samples for path in sample.files)
    set_seed(cfg.SOLVER.SEED)
    model = make_model(
        cfg, len(identity_labels(splits["train"])), 1 + max(sample.camera for sample in samples)
    )
    loader = train_loader(cfg, splits["train"])
    test_data = make_test_data(cfg, splits["query"], splits["gallery"])
    held_out = splits.get(VALIDATION, [])
    validation = make_test_data(cfg, held_out, held_out) if held_out else None
    if resumed:
        origin = f"the weights are those of {resumed.path}"
    elif cfg.TEST.WEIGHT:
        origin = start_from(model, read_checkpoint(cfg.TEST.WEIGHT))
    else:
        source = cfg.MODEL.PRETRAIN_PATH_T
        origin = load_pretrained(model.backbone, cfg.MODEL.TRANSFORMER_TYPE, source)
    if cfg.MODEL.COMPILE:
        model.backbone.compile_blocks()
    sizes = ", ".join(f"{len(members)} {split}" for split, members in splits.items())
    notes = [
        f"{cfg.DATASETS.NAMES}: {sizes}",
        *completeness(cfg, splits),
        origin,
        *(f"best.pth is chosen by the split {VALIDATION}" for _ in held_out[:1]),
        *data_warnings(cfg, splits, test_data.matched),
    ]
    digest = digest_data(cfg.DATASETS.ROOT_DIR, data_files(cfg, splits))
    return ReIDTrainer(cfg, model.to(device), loader, test_data, digest, notes, validation)


class Trained(NamedTuple):
    """`metrics`: the records of metrics.json; `model`: that of last.pth, in evaluation mode."""

    metrics: list[dict]
    model: DeMo


def train(cfg: CfgNode, overwrite: bool = False) -> Trained:
    """Train a model by a configuration of `load_cfg`, as train_net.py does: → the records of metrics.json, and the model after
    the last epoch, in evaluation mode.

    A run in OUTPUT_DIR is replaced with `overwrite`, and continued by RESUME; a finished one is returned as it is. One that
    SIGTERM or SIGHUP stops is saved and ends with `SystemExit(0)`, after Ctrl-C with `KeyboardInterrupt`.
    """
    check_launch(cfg)
    missing_modalities(cfg.TEST.MISS)  # refuses 'all', which is for test_net.py
    if trainer := run_training(cfg, overwrite, make_reid_trainer):
        if trainer.epoch < cfg.SOLVER.MAX_EPOCHS:
            sys.exit(0)  # stopped by a signal, and saved
        return Trained(trainer.records, trainer.model.eval())
    output = Path(cfg.OUTPUT_DIR)
    checkpoint = read_checkpoint(output / LAST)
    model = make_model(cfg, checkpoint.num_class, checkpoint.camera_num)
    load_weights(model, checkpoint)
    return Trained(read_records(output), model.eval().to(choose_device(cfg)))


def data_files(cfg: CfgNode, splits: Mapping[str, Sequence[Sample]]) -> dict[str, Sequence[str]]:
    """The files that training and evaluation read, by split and modality: "query NI"; "query images" of three side by side."""
    paths: dict[str, Sequence[str]] = {}
    for split, samples in splits.items():
        names = MODALITIES if len(samples[0].paths) == len(MODALITIES) else ("images",)
        columns = zip(*(sample.paths for sample in samples), strict=True)
        paths |= {
            f"{split} {name}": list(filter(None, files))
            for name, files in zip(names, columns, strict=True)
        }
        if split == "train" and reads_masks(cfg):
            paths[f"{split} {MASK}"] = existing_masks(cfg, samples)
    return paths
