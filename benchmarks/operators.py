"""Rows of benchmarks/run.py: operators of torch, which on a GPU are launches of kernels, counted on fake tensors, which have
shapes and no values."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from yacs.config import CfgNode

from benchmarks.model import GPU_BATCH, configuration
from benchmarks.rows import Row
from benchmarks.slimming import DENSE, STAGES, STEP, Setting
from benchmarks.timing import CAMERAS, CLASSES, random_batch, training_step
from demo_sdtps.modeling import backbones as vit
from demo_sdtps.modeling.demo import DeMo, make_model
from demo_sdtps.modeling.precision import inference
from demo_sdtps.training.optim import make_optimizer

BUDGETS = {
    DENSE: (245, 900),
    "saliency": (430, 977),
}
"""Operators at most, of inference and of a training step, by MODEL.SLIM_SCORE."""
NO_KERNELS = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty_strided"}
"""Operators beside views that compute nothing."""


class Counter(TorchDispatchMode):
    """Counts operators that launch kernels, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operators, self.bytes = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = function.overloadpacket.__name__
        if function.namespace == "aten" and not function.is_view and name not in NO_KERNELS:
            tensors = (each for each in tree_iter((args, kwargs, result)) if torch.is_tensor(each))
            self.operators += 1
            self.bytes += sum(tensor.nbytes for tensor in tensors)
        return result


def operators_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """The rows of the dense model and of every score, whatever the device."""
    for score in list(BUDGETS)[: 1 if quick else None]:
        yield from count_rows(score)


def count_rows(score: str) -> list[Row]:
    """Operators of inference and of a training step of MODEL.SLIM_SCORE `score`, or of the DENSE model, in bfloat16.

    Raises torch's `DataDependentOutputException` or `DynamicOutputShapeException` where the CPU would wait for a GPU.
    """
    cfg = configuration("MODEL.PRETRAIN_PATH_T", "none", "MODEL.DEVICE", "cpu")
    cfg = cfg if score == DENSE else Setting(score, STAGES, (0.5, 0.5)).of(cfg)
    device, model = torch.device("cpu"), meta_model(cfg)
    # Images pass the backbone in chunks on a CPU alone.
    in_one_chunk = patch.object(vit, "CHUNK", 3 * GPU_BATCH)
    with inference(model, torch.bfloat16), in_one_chunk, FakeTensorMode():
        batch = random_batch(cfg, GPU_BATCH, device)
        make_fake(model)
        with Counter() as forward:
            model(batch.images, batch.cameras)
    model = meta_model(cfg)
    with FakeTensorMode():
        make_fake(model)
        optimizer = make_optimizer(cfg, model)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()  # makes its state
        step = training_step(cfg, model, optimizer, torch.bfloat16, model.head_weights)
        batch = random_batch(cfg, GPU_BATCH, device)
        with Counter() as whole:
            step(batch)
    in_forward, in_step = BUDGETS[score]
    return [
        budget_row(f"{score}: operators of inference", forward.operators, in_forward),
        Row("… GiB that they read and write", None, forward.bytes / 2**30, "GiB", None),
        budget_row(f"{score}: operators of a {STEP}", whole.operators, in_step),
    ]


def budget_row(what: str, count: int, at_most: int) -> Row:
    return Row(what, None, count, "", None, f"≤ {at_most}", count <= at_most)


def meta_model(cfg: CfgNode) -> DeMo:
    """The model of a configuration, without values, with the attention that a GPU chooses."""
    with torch.device("meta"):
        model = make_model(cfg, CLASSES, CAMERAS)
    model.backbone.fused_attention = True
    return model


def make_fake(model: nn.Module) -> None:
    """Replace parameters and buffers by fake tensors on the CPU, as a model on "meta" has no autocast."""
    for module in model.modules():
        for name, tensor in module.named_parameters(recurse=False):
            values = torch.empty(tensor.shape, dtype=tensor.dtype)
            setattr(module, name, nn.Parameter(values, tensor.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))
