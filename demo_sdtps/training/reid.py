"""Training of re-identification: `train`, which joins data, model, loss and optimisers, the loss of a batch, the teacher whose
logits it may follow (distillation), and the evaluation after an epoch (docs/method.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.load import StoredText, flatten
from demo_sdtps.datasets import (
    OWN_READERS,
    SPLITS,
    Sample,
    check_labelled,
    identity_labels,
    read_splits,
)
from demo_sdtps.datasets.base import VALIDATION
from demo_sdtps.datasets.loaders import Batch, train_loader
from demo_sdtps.evaluation.protocol import (
    TestData,
    by_trained_cameras,
    data_name,
    data_warnings,
    evaluate_reid,
    make_test_data,
)
from demo_sdtps.evaluation.tables import reid_record, reid_table
from demo_sdtps.modeling.checkpoints.loading import (
    CLASSES,
    load_weights,
    read_checkpoint,
    start_from,
)
from demo_sdtps.modeling.checkpoints.pretrained import load_pretrained
from demo_sdtps.modeling.demo import DeMo, make_model, missing_modalities
from demo_sdtps.modeling.losses import Target, TrainingOutput, make_center_losses, total_loss
from demo_sdtps.modeling.precision import check_finite, compile_model
from demo_sdtps.runtime.device import set_seed
from demo_sdtps.runtime.distributed import all_gather, check_launch, wrap_ddp
from demo_sdtps.runtime.files import sha256
from demo_sdtps.runtime.gpu import can_record
from demo_sdtps.training import optim
from demo_sdtps.training.loop import Loss, fit
from demo_sdtps.training.run import LAST, PART, Evaluation, digest_lines, file_lines, open_run

# keys that two models have equal where they read the same tensors
IMAGE_KEYS = (
    "MODEL.MODALITIES",
    *(f"INPUT.{name}" for name in ("SIZE_TRAIN", "SIZE_TEST", "PIXEL_MEAN", "PIXEL_STD", "RANGES")),
)


class Trained(NamedTuple):
    """`metrics`: the records of metrics.json; `model`: that of last.pth, in evaluation mode."""

    metrics: list[dict]
    model: DeMo


def train(cfg: CfgNode, overwrite: bool = False) -> Trained:
    """Train a model by a configuration of `load_cfg`, as train_net.py does: → the records of metrics.json, and the model after
    the last epoch, in evaluation mode.

    A run in OUTPUT_DIR is replaced with `overwrite`, and continued by RESUME from the end of its last epoch; a finished one is
    returned as it is.
    """
    check_launch(cfg)
    missing_modalities(cfg.TEST.MISS)  # refuses 'all', which is for demo-sdtps test
    with open_run(cfg, overwrite) as run:
        if run.is_finished:
            state = run.state or {}
            model = make_model(cfg, state["num_class"], state["camera_num"])
            model.load_state_dict(state["model"])
            return Trained(run.records, model.eval().to(run.device))
        check_labelled(cfg)
        splits = read_splits(cfg, (*SPLITS, VALIDATION) if cfg.DATASETS.VALIDATION else SPLITS)
        cameras = 1 + max(sample.camera for split in splits.values() for sample in split)
        names = camera_names(splits["train"])
        if cfg.DATASETS.NAMES in OWN_READERS:  # all are in the mean for others
            names = [*filter(None, names)]
            cameras = len(names)
        set_seed(cfg.SOLVER.SEED)
        classes = len(identity_labels(splits["train"]))
        model = make_model(cfg, classes, cameras)
        splits = by_trained_cameras(cfg, splits, names, model.backbone.cameras)
        digest = class_digest(cfg, splits["train"])
        origin = f"the weights are those of {run.output / LAST}"
        if run.state is None:  # before the images are read, as there may be no network
            if cfg.TEST.WEIGHT:
                start = read_checkpoint(cfg.TEST.WEIGHT)
                origin = start_from(model, start, start.origin.get(CLASSES) == digest)
            else:
                kind, weights = cfg.MODEL.TRANSFORMER_TYPE, cfg.MODEL.PRETRAIN_PATH_T
                origin = load_pretrained(model.backbone, kind, weights)
        loader = train_loader(cfg, splits["train"])
        data = {"patterns": make_test_data(cfg, splits["query"], splits["gallery"])}
        if held_out := splits.get(VALIDATION):
            data[VALIDATION] = make_test_data(cfg, held_out, held_out)
        teacher = read_teacher(cfg, model, run.device, digest)
        loss = ReIDLoss(cfg, model.to(run.device), teacher)
        if cfg.MODEL.COMPILE:
            compile_model(model, run.device, loss)
        optimizers = [optim.make_optimizer(cfg, model)]
        if loss.centers:
            optimizers.append(optim.make_center_optimizer(cfg, loss.centers))
        begin_epoch = optim.make_scheduler(cfg, optimizers[0]).step
        lines = (
            f"{split} {line}"
            for split, members in splits.items()
            for sample in members
            for line in file_lines(cfg.DATASETS.ROOT_DIR, sample.files)
        )
        sizes = ", ".join(f"{len(members)} {split}" for split, members in splits.items())
        run.begin(
            model,
            optimizers,
            digest_lines([*lines, teacher.digest if teacher else ""]),
            notes=[
                f"{cfg.DATASETS.NAMES}: {sizes}",
                origin,
                *([teacher.note] if teacher else []),
                *([f"best.pth is chosen by the split {VALIDATION}"] if held_out else []),
                *data_warnings(cfg, splits, data["patterns"].matched),
            ],
            about={
                "num_class": classes,
                "camera_num": model.camera_num,
                "cameras": names,
                "data": data_name(cfg),
                CLASSES: digest,
            },
            others={"center_losses": loss.centers},
        )
        models = [cfg, teacher.cfg] if teacher else [cfg]
        fit(
            run,
            loader,
            loss,
            begin_epoch,
            lambda _: evaluate(cfg, model, data),
            can_record=all(can_record(each, run.device) for each in models),
        )
        return Trained(run.records, model.eval())


@dataclass(frozen=True)
class Teacher:
    """A model in evaluation mode, whose logits by some of its heads are followed."""

    cfg: CfgNode
    model: DeMo
    heads: Sequence[str]
    digest: str = ""  # of its file, SHA-256
    note: str = ""  # for the log

    @torch.no_grad()
    def __call__(self, batch: Batch) -> dict[str, Target]:
        """What it makes of a batch by head, and of the other processes' batches after each other."""
        encoded = self.model.forward_features(batch.images, batch.cameras)
        features, model = self.model.forward_head(encoded), self.model
        targets = {
            name: Target(model.heads[name](features[name]), features[name]) for name in self.heads
        }
        return tree_map_only(torch.Tensor, all_gather, targets)


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
    """The evaluation of "patterns", the test data, and of VALIDATION, if any; the score is the mAP of the last."""
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
    table = "\n".join([table, *more])
    *_, chosen_by = records.values()
    return Evaluation(records, chosen_by[str(cfg.TEST.RETURN_PATTERN)]["mAP"], scalars, table)


def camera_names(samples: Sequence[Sample]) -> list[str]:
    """What the files call each camera, from camera 0; "" for one that is not among the samples."""
    names = {sample.camera: sample.camera_name for sample in samples}
    return [names.get(camera, "") for camera in range(1 + max(names))]


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
    if checkpoint.origin.get(CLASSES) != class_digest:
        raise UserError(
            f"{path} was trained on other identities, images of them or cameras than those at {cfg.DATASETS.ROOT_DIR}; give "
            "a teacher that was trained on these, or none."
        )
    check_finite(f"The weights of {path}", checkpoint.model.values())
    with torch.random.fork_rng(devices=[]):  # the training draws what one without a teacher draws
        model = make_model(trained, checkpoint.num_class, checkpoint.camera_num)
    heads = [name for name in student.heads if name in model.heads]
    if not heads:
        raise UserError(
            f"{path} has none of the model's heads ({', '.join(student.heads)}, not {', '.join(model.heads)}); "
            "give a teacher with one of them (MODEL.DIRECT, HDM, USE_SDTPS)."
        )
    load_weights(model, checkpoint)
    model.to(device).eval().requires_grad_(False)
    if cfg.MODEL.COMPILE:
        compile_model(model, device)
    note = f"the teacher is {checkpoint.path}, of the heads {', '.join(heads)}"
    return Teacher(trained, model, heads, sha256(checkpoint.path), note)


def class_digest(cfg: CfgNode, samples: Sequence[Sample]) -> str:
    """A digest of the training images, whose they are, and by which camera: the same where classes mean the same."""
    labels, root = identity_labels(samples), cfg.DATASETS.ROOT_DIR
    return digest_lines(
        f"{labels[sample.identity]} {sample.camera} {line}"
        for sample in samples
        for line in file_lines(root, sample.files)
    )
