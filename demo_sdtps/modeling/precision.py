"""Precision of a model's weights, in training and in evaluation; evaluation mode, compilation, and checks of the outputs."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from demo_sdtps.modeling.backbones import QUICK_GELU, Backbone, QuickGELUMlp
from demo_sdtps.runtime.distributed import world_size
from demo_sdtps.runtime.errors import UserError
from vit_slim.stage import Score

if TYPE_CHECKING:
    from demo_sdtps.modeling.demo import DeMo

M = TypeVar("M", bound=nn.Module)


@contextmanager
def inference(model: "DeMo", precision: torch.dtype | None) -> Iterator[None]:
    """Context manager: `model` is in evaluation mode without gradients, backbone and scores in `precision`, if given."""
    backbone, slimming = model.backbone, model.slimming
    with evaluating(model):
        try:
            if precision:
                model.backbone = cast_copy(backbone, precision)
                model.slimming = slimming and cast_copy(slimming, precision)
            yield
        finally:
            model.backbone, model.slimming = backbone, slimming


def cast_copy(module: M, precision: torch.dtype) -> M:
    """Copy of a backbone, or of the stages of slimming, for inference: its layers hold the weights that autocast would cast at
    every forward. A backbone returns the dtype of its input, and is compiled where the original is.

    Tokens stay in float32 between the matrix products, as under autocast: in bfloat16 throughout, mAP on the synthetic
    pedestrians changes by 0.3, with float32 between the products by less than 0.1.
    """
    copied = copy.deepcopy(module).requires_grad_(False)
    for mlp in copied.modules():
        if isinstance(mlp, QuickGELUMlp):
            mlp.fold()
    for layer in castable_layers(copied):
        layer.to(precision)
    if isinstance(copied, Backbone):
        copied.precision = None if precision is torch.float32 else precision  # autocast has none
        if copied.is_compiled:  # the copy's blocks are not
            copied.compile_blocks()
    return copied


def castable_layers(model: nn.Module) -> list[nn.Module]:
    """Linear and convolution layers; without those of a score, which may compute outside autocast."""
    scores = (each for each in model.modules() if isinstance(each, Score))
    others = {module for score in scores for module in score.modules()}
    kinds = (nn.Linear, nn.Conv2d)
    return [each for each in model.modules() if isinstance(each, kinds) and each not in others]


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


def compile_model(model: "DeMo", device: torch.device, loss: nn.Module | None = None) -> None:
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


def half_weights(model: nn.Module) -> AbstractContextManager[None]:
    """Context manager: under autocast with gradients, linear and convolution layers of `model` have weights in its precision,
    which pass their gradients on, and are bit-equal to what autocast makes of them; but for a score that may compute outside
    autocast. Compiled code fuses its casts itself."""
    kind = next(model.parameters()).device.type
    is_cast = torch.is_autocast_enabled(kind) and torch.is_grad_enabled()
    if not is_cast or torch.compiler.is_compiling():
        return nullcontext()
    return _replaced(model, torch.get_autocast_dtype(kind))


@contextmanager
def _replaced(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    mlps = [module for module in model.modules() if isinstance(module, QuickGELUMlp)]
    expanding = [(mlp.fc1, name) for mlp in mlps for name in ("weight", "bias")]
    scaled = [*expanding, *((mlp.fc2, "weight") for mlp in mlps)]
    layers = castable_layers(model)
    pairs = [(layer, name) for layer in layers for name, _ in layer.named_parameters(recurse=False)]
    parameters = list(dict.fromkeys([*scaled, *pairs]))
    weights = [layer._parameters[name] for layer, name in parameters]
    copies = Cast.apply(dtype, len(expanding), len(mlps), *weights)
    try:
        _set_parameters(parameters, copies)
        for mlp in mlps:
            mlp.is_folded = True
        yield
    finally:
        _set_parameters(parameters, weights)
        for mlp in mlps:
            mlp.is_folded = False


def _set_parameters(parameters: Sequence[tuple[nn.Module, str]], tensors: Sequence[Any]) -> None:
    for (layer, name), tensor in zip(parameters, tensors, strict=True):
        layer._parameters[name] = tensor


class Cast(torch.autograd.Function):
    """Weights → their copies in `dtype`, as one operator: the first `expanding` of them times QUICK_GELU, the next
    `contracting` divided by it. So are the gradients."""

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, expanding: int, contracting: int, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.scaled = range(expanding), range(expanding, expanding + contracting)
        ctx.dtype = weights[0].dtype
        copies = _copies(_scaled(weights, expanding, contracting), dtype)
        pairs = zip(copies, ctx.needs_input_grad[3:], strict=True)
        ctx.mark_non_differentiable(*(copy for copy, is_learned in pairs if not is_learned))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        by_number = {number: each for number, each in enumerate(gradients) if each is not None}
        counts = (sum(number in numbers for number in by_number) for numbers in ctx.scaled)
        wide = _scaled(_copies([*by_number.values()], ctx.dtype), *counts)
        of_weights = dict(zip(by_number, wide, strict=True))
        return None, None, None, *map(of_weights.get, range(len(gradients)))


def _copies(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies


def _scaled(
    tensors: Sequence[torch.Tensor], expanding: int, contracting: int
) -> list[torch.Tensor]:
    first, last = list(tensors[:expanding]), list(tensors[expanding : expanding + contracting])
    multiplied = torch._foreach_mul(first, QUICK_GELU) if first else []
    divided = torch._foreach_div(last, QUICK_GELU) if last else []
    return [*multiplied, *divided, *tensors[expanding + contracting :]]
