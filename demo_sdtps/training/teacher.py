"""Distillation: a trained model whose logits a training follows (MODEL.TEACHER)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.common import IMAGE_KEYS
from demo_sdtps.config.load import StoredText, flatten
from demo_sdtps.datasets.loaders import Batch
from demo_sdtps.modeling.checkpoints.loading import CLASSES, load_weights, read_checkpoint
from demo_sdtps.modeling.demo import DeMo, make_model
from demo_sdtps.modeling.precision import check_finite, compile_model
from demo_sdtps.runtime.distributed import all_gather
from demo_sdtps.runtime.files import sha256


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
        encoded = self.model.forward_features(batch.images, batch.cameras)
        features = self.model.forward_head(encoded)
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
