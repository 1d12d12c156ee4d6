"""Inference: evaluation mode in a precision, checked outputs; compilation."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from demo_sdtps.config import UserError
from demo_sdtps.modeling.demo import DeMo
from demo_sdtps.runtime.distributed import world_size
from vit_slim.scores import SCORES
from vit_slim.wrap import Slimming


@contextmanager
def inference(model: DeMo, precision: torch.dtype | None) -> Iterator[None]:
    """Context manager: `model` is in evaluation mode without gradients, with weights of backbone and scores in `precision`,
    if given."""
    backbone, slimming = model.backbone, model.slimming
    with evaluating(model):
        try:
            if precision:
                model.backbone = backbone.cast_for_inference(precision)
                model.slimming = slimming and cast_scores(slimming, precision)
            yield
        finally:
            model.backbone, model.slimming = backbone, slimming


def cast_scores(slimming: Slimming, precision: torch.dtype) -> Slimming:
    """A copy whose scores hold the weights that autocast would cast at every forward; a score of the user's, which may compute
    outside autocast, keeps its own."""
    copied = copy.deepcopy(slimming)
    for score in copied.scores:
        for module in score.modules() if type(score) in SCORES.values() else ():
            if isinstance(module, nn.Linear):
                module.to(precision)
    return copied


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context manager: `model` is in evaluation mode, without gradients."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def compile_model(model: DeMo, device: torch.device, loss: nn.Module | None = None) -> None:
    """Compile at the first call (MODEL.COMPILE): on a GPU the whole model, and with it the `loss` that calls it, for each shape
    of a batch; on a CPU, where that takes minutes, and in several processes the blocks."""
    if device.type == "cuda" and world_size() == 1:
        for whole in filter(None, (model, loss)):
            whole.compile(dynamic=False)
    else:
        model.backbone.compile_blocks()


def check_finite(what: str, tensors: Iterable[torch.Tensor]) -> None:
    """Raise `UserError` where a model's outputs, `what` in the sentence, are not finite."""
    flags = [tensor.isfinite().all() for tensor in tensors]
    if flags and not torch.stack(flags).all():  # a GPU is waited for once
        raise UserError(
            f"{what} are not finite; the weights are damaged or their training diverged: use other weights, or "
            "train with a lower SOLVER.BASE_LR."
        )


def check_features(what: str, features: Iterable[torch.Tensor]) -> None:
    """Raise `UserError` where features (…, D), `what` in the sentence, or their lengths are not finite."""
    norms = (torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32) for rows in features)
    check_finite(what, norms)
