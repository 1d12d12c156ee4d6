"""Inference: evaluation mode in a precision, checked outputs, compiled blocks."""
import math
import os
import shutil
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from demo_sdtps.config import UserError
from demo_sdtps.modeling.demo import DeMo

LONGEST = math.sqrt(torch.finfo(torch.float32).max) / 2
"""Length of features up to which their squared distances are float32; much longer ones are normalised to zeros."""
ADVICE = "; the weights are damaged or their training diverged: use other weights, or train with a lower SOLVER.BASE_LR."


@contextmanager
def inference(model: DeMo, precision: torch.dtype | None) -> Iterator[None]:
    """Inside, `model` is in evaluation mode without gradients, with backbone weights cast to `precision`, if given."""
    backbone = model.backbone
    with evaluating(model):
        try:
            model.backbone = backbone.cast_for_inference(precision) if precision else backbone
            yield
        finally:
            model.backbone = backbone


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, `model` is in evaluation mode, without gradients."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def check_finite(what: str, tensors: Iterable[torch.Tensor]) -> None:
    """Raise `UserError` where a model's outputs, `what` in the sentence, are not finite."""
    if not _all(tensor.isfinite() for tensor in tensors):
        raise UserError(f"{what} are not finite{ADVICE}")


def check_features(what: str, features: Collection[torch.Tensor]) -> None:
    """Raise `UserError` where features (…, D), `what` in the sentence, are not finite, or longer than LONGEST."""
    check_finite(what, features)
    if not _all(torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32) <= LONGEST for part in features):
        raise UserError(f"{what} are too large to be normalised or compared, as their squares overflow float32{ADVICE}")


def _all(conditions: Iterable[torch.Tensor]) -> bool:
    """Whether all are true everywhere; a GPU is waited for once."""
    found = [condition.all() for condition in conditions]
    return not found or bool(torch.stack(found).all())


def compile_model(model: DeMo, device: torch.device) -> None:
    """Compile the model's backbone on `device` (MODEL.COMPILE). Raises `UserError` without the C++ compiler that CPUs need."""
    missing = missing_for_compilation() if device.type == "cpu" else None
    if missing:
        raise UserError(f"MODEL.COMPILE is True, but there is no {missing}, which torch.compile needs on a CPU; install it, or "
                        "set MODEL.COMPILE to False.")
    model.backbone.compile_blocks()


def missing_for_compilation() -> str | None:
    """What torch.compile needs on a CPU and this machine lacks, None if nothing."""
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        return "C++ compiler (g++ or clang++)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h (the headers of Python, python3-dev in Debian)"
    return None
