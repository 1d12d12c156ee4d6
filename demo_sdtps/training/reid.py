"""Training of re-identification (docs/method.md): what the loop is given, the teacher, and the call in Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.config.common import IMAGE_KEYS
from demo_sdtps.config.load import StoredText, flatten
from demo_sdtps.datasets import (
    SPLITS,
    Sample,
    camera_names,
    check_labelled,
    completeness,
    data_name,
    identity_labels,
    read_splits,
)
from demo_sdtps.datasets.base import VALIDATION
from demo_sdtps.datasets.images import verify
from demo_sdtps.datasets.loaders import Batch, batches, train_loader
from demo_sdtps.evaluation.protocol import TestData, data_warnings, evaluate_reid, make_test_data
from demo_sdtps.evaluation.tables import equal_patterns, read_records, reid_record, reid_table
from demo_sdtps.modeling import DeMo, make_model
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint, start_from
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained
from demo_sdtps.modeling.checkpoints.records import CLASSES
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.heads import TrainingOutput
from demo_sdtps.modeling.inference import check_finite, compile_model
from demo_sdtps.modeling.losses import make_center_losses, total_loss
from demo_sdtps.runtime.device import choose_device, set_seed
from demo_sdtps.runtime.distributed import all_gather, check_launch, wrap_ddp
from demo_sdtps.runtime.files import sha256
from demo_sdtps.runtime.gpu import can_record
from demo_sdtps.training.loop import fit
from demo_sdtps.training.optim import (
    make_center_optimizer,
    make_optimizer,
    make_scheduler,
    rate_warnings,
)
from demo_sdtps.training.output import LAST, Resumed
from demo_sdtps.training.resume import TEACHER, describe_files, digest_lines
from demo_sdtps.training.run import PART, Evaluation, Loss, Task


@dataclass(frozen=True)
class Teacher:
    """A model in evaluation mode, whose logits by some of its heads are followed."""

    cfg: CfgNode
    model: DeMo
    heads: Sequence[str]
    digest: str = ""  # of its file, SHA-256
    notes: Sequence[str] = ()  # for the log

    @torch.no_grad()
    def __call__(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Logits (B, K) by head of a batch, and of the other processes' batches after each other."""
        context = self.model.forward_features(batch.images, batch.cameras).context
        features = self.model.forward_head(context)
        return {name: all_gather(self.model.heads[name](features[name])) for name in self.heads}


def read_teacher(
    cfg: CfgNode, student: DeMo, device: torch.device, class_digest: str
) -> Teacher | None:
    """The model of MODEL.TEACHER on a device, None for none, for a training of `student` on classes with this digest. Raises
    `UserError` where its classes are others, it reads images of another kind, or it has none of the heads."""
    if not cfg.MODEL.TEACHER:
        return None
    checkpoint = read_checkpoint(cfg.MODEL.TEACHER)
    path = f"MODEL.TEACHER {checkpoint.path}"
    if not checkpoint.config:
        raise UserError(
            f"{path} holds no configuration (bare weights and DeMo's checkpoints have none); give one that "
            "demo-sdtps train wrote."
        )
    trained = load_cfg(StoredText(checkpoint.path, checkpoint.config))
    before, now = flatten(trained), flatten(cfg)
    for key in IMAGE_KEYS:
        if before[key] != now[key]:
            raise UserError(
                f"{key} is {now[key]}, but {path} was trained with {before[key]}; make them equal, or give another "
                "teacher."
            )
    known, counts = checkpoint.origin.get(CLASSES), (checkpoint.num_class, checkpoint.camera_num)
    if known not in (None, class_digest) or (
        not known and counts != (student.num_class, student.camera_num)
    ):
        raise UserError(
            f"{path} was trained on other identities, images of them or cameras than those at {cfg.DATASETS.ROOT_DIR}; give "
            "a teacher that was trained on these, or none."
        )
    check_finite(f"The weights of {path}", checkpoint.model.values())
    with torch.random.fork_rng(devices=[]):  # the training draws what one without a teacher draws
        model = make_model(trained, *counts).eval().requires_grad_(False)
    heads = [name for name in student.heads if name in model.heads]
    if not heads:
        raise UserError(
            f"{path} has none of the model's heads ({', '.join(student.heads)}, not {', '.join(model.heads)}); "
            "give a teacher with one of them (MODEL.DIRECT, HDM, USE_SDTPS)."
        )
    load_weights(model, checkpoint)
    model.to(device)
    if cfg.MODEL.COMPILE:
        compile_model(model, device)
    notes = [f"the teacher is {checkpoint.path}, of the heads {', '.join(heads)}"]
    if others := [name for name in student.heads if name not in heads]:
        notes[0] += f"; left out, which it does not have: {', '.join(others)}"
    if not known:
        notes.append(
            f"WARNING: {path} does not say which identities it was trained on: they are taken for these"
        )
    return Teacher(trained, model, heads, sha256(checkpoint.path), notes)


class Trained(NamedTuple):
    """`metrics`: the records of metrics.json; `model`: that of last.pth, in evaluation mode."""

    metrics: list[dict]
    model: DeMo


def train(cfg: CfgNode, overwrite: bool = False) -> Trained:
    """Train a model by a configuration of `load_cfg`, as train_net.py does: → the records of metrics.json, and the model after
    the last epoch, in evaluation mode.

    A run in OUTPUT_DIR is replaced with `overwrite`, and continued by RESUME; a finished one is returned as it is. One that
    SIGTERM or SIGHUP stops is saved and ends with `Stopped`, after Ctrl-C with `KeyboardInterrupt`.
    """
    check_launch(cfg)
    missing_modalities(cfg.TEST.MISS)  # refuses 'all', which is for demo-sdtps test
    if run := fit(cfg, overwrite, make_task):
        return Trained(run.records, cast(DeMo, run.task.model.eval()))
    output = Path(cfg.OUTPUT_DIR)
    checkpoint = read_checkpoint(output / LAST)
    model = make_model(cfg, checkpoint.num_class, checkpoint.camera_num)
    load_weights(model, checkpoint)
    return Trained(read_records(output), model.eval().to(choose_device(cfg)))


class ReIDLoss(nn.Module):
    """The loss of a batch, with the centers that MODEL.METRIC_LOSS_TYPE may have beside the model, and the teacher."""

    def __init__(self, cfg: CfgNode, model: DeMo, teacher: Teacher | None = None):
        super().__init__()
        self.cfg, self.weights, self.network = cfg, model.head_weights, wrap_ddp(model)
        self.teacher = teacher
        widths = list(model.layout.widths.values())
        self.centers = make_center_losses(cfg, model.num_class, widths)
        self.centers.to(next(model.parameters()).device)

    def forward(self, batch: Batch) -> Loss:
        output: TrainingOutput = self.network(batch.images, batch.cameras)
        # Each of several processes computes the loss of the whole batch, and mines its triplets there.
        output, labels = tree_map_only(torch.Tensor, all_gather, (output, batch.labels))
        targets = self.teacher(batch) if self.teacher else {}
        loss, terms = total_loss(self.cfg, output, labels, self.weights, self.centers, targets)
        predicted = next(iter(output.logits.values())).detach().argmax(dim=1)
        sums = {f"{PART}{name}": term * len(labels) for name, term in terms.items()}
        return Loss(loss, len(labels), {"accuracy": (predicted == labels).sum(), **sums})


def evaluate(cfg: CfgNode, model: DeMo, data: Mapping[str, TestData]) -> Evaluation:
    """The evaluation of "patterns", the test data, and of VALIDATION where it is there, whose mAP of TEST.RETURN_PATTERN then
    is the score."""
    records = {
        name: reid_record(evaluate_reid(cfg, model, each)[cfg.TEST.MISS])
        for name, each in data.items()
    }
    scalars = {
        f"{name.removesuffix('s')}_{pattern}/{measure}": value
        for name, record in records.items()
        for pattern, row in record.items()
        for measure, value in row.items()
    }
    table, *tables = map(reid_table, records.values())
    more = (f"{VALIDATION}\n{other}" for other in tables)
    table = "\n".join([table, *more, *equal_patterns(cfg)])
    *_, chosen_by = records.values()
    return Evaluation(records, chosen_by[str(cfg.TEST.RETURN_PATTERN)]["mAP"], scalars, table)


def make_task(cfg: CfgNode, device: torch.device, resumed: Resumed | None) -> Task:
    """Data set, model, weights and loss of `cfg`, on `device`."""
    check_labelled(cfg)
    splits = read_splits(cfg, (*SPLITS, VALIDATION) if cfg.DATASETS.VALIDATION else SPLITS)
    samples = [sample for split in splits.values() for sample in split]
    if cfg.DATASETS.VERIFY:
        verify(path for sample in samples for path in sample.files)
    set_seed(cfg.SOLVER.SEED)
    classes = len(identity_labels(splits["train"]))
    model = make_model(cfg, classes, 1 + max(sample.camera for sample in samples))
    loader = train_loader(cfg, splits["train"])
    data = {"patterns": make_test_data(cfg, splits["query"], splits["gallery"])}
    if held_out := splits.get(VALIDATION):
        data[VALIDATION] = make_test_data(cfg, held_out, held_out)
    digest = class_digest(cfg, splits["train"])
    teacher = read_teacher(cfg, model, device, digest)
    if resumed:
        origin = f"the weights are those of {resumed.path}"
    elif cfg.TEST.WEIGHT:
        start = read_checkpoint(cfg.TEST.WEIGHT)
        origin = start_from(model, start, start.origin.get(CLASSES) == digest)
    else:
        source = cfg.MODEL.PRETRAIN_PATH_T
        origin = load_pretrained(model.backbone, cfg.MODEL.TRANSFORMER_TYPE, source)
    loss = ReIDLoss(cfg, model.to(device), teacher)
    if cfg.MODEL.COMPILE:
        compile_model(model, device, loss)
    optimizers = [make_optimizer(cfg, model)]
    if loss.centers:
        optimizers.append(make_center_optimizer(cfg, loss.centers))
    sizes = ", ".join(f"{len(members)} {split}" for split, members in splits.items())
    notes = [f"{cfg.DATASETS.NAMES}: {sizes}", *completeness(cfg, splits), origin]
    notes += teacher.notes if teacher else []
    taught = {TEACHER: teacher.digest} if teacher else {}
    if held_out:
        notes.append(f"best.pth is chosen by the split {VALIDATION}")
    return Task(
        model=model,
        loader=loader,
        batches=partial(batches, loader),
        loss=loss,
        evaluate=lambda _: evaluate(cfg, model, data),
        optimizers=optimizers,
        begin_epoch=make_scheduler(cfg, optimizers[0]).step,
        describe=lambda means: (
            f"loss {means['loss']:.3f}, accuracy {100 * means['accuracy']:.1f} %"
        ),
        unit="triplets",
        can_record=can_record(cfg, device) and (teacher is None or can_record(teacher.cfg, device)),
        digest=digest_lines(data_lines(cfg, splits)) | taught,
        notes=[*notes, *data_warnings(cfg, splits, data["patterns"].matched), *rate_warnings(cfg)],
        about={
            "num_class": classes,
            "camera_num": model.camera_num,
            "cameras": camera_names(samples),
            "data": data_name(cfg, classes),
            CLASSES: digest,
            **taught,
        },
        auxiliary={"center_losses": loss.centers},
    )


def class_digest(cfg: CfgNode, samples: Sequence[Sample]) -> str:
    """A digest of the training images, whose they are, and by which camera: the same where classes mean the same."""
    labels, root = identity_labels(samples), cfg.DATASETS.ROOT_DIR
    lines = (
        f"{labels[sample.identity]} {sample.camera} {line}"
        for sample in samples
        for line in describe_files(root, sample.files)
    )
    return digest_lines({CLASSES: lines})[CLASSES]


def data_lines(cfg: CfgNode, splits: Mapping[str, Sequence[Sample]]) -> dict[str, list[str]]:
    """The files that training and evaluation read, by split and modality: "query NI"; "query images" of three side by side."""
    paths: dict[str, Sequence[str | None]] = {}
    for split, samples in splits.items():
        names = MODALITIES if len(samples[0].paths) == len(MODALITIES) else ("images",)
        for place, name in enumerate(names):
            paths[f"{split} {name}"] = [sample.paths[place] for sample in samples]
    root = cfg.DATASETS.ROOT_DIR
    return {name: describe_files(root, filter(None, files)) for name, files in paths.items()}
