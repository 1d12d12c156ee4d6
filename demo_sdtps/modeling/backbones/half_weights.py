"""Weights in half precision for a training step: cast by a few operators for all, where autocast takes two for each weight."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from demo_sdtps.modeling.backbones.clip import QUICK_GELU, QuickGELUMlp
from vit_slim.scores import SCORES
from vit_slim.stage import Score


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
    # The linear layers of SCORES run under autocast alone; a score of the user's may leave it.
    known = tuple(SCORES.values())
    scores = (each for each in model.modules() if isinstance(each, Score))
    scores = (each for each in scores if type(each) not in known)
    left_out = {module for score in scores for module in score.modules()}
    modules = [module for module in model.modules() if module not in left_out]
    mlps = [module for module in modules if isinstance(module, QuickGELUMlp)]
    expanding = [(mlp.fc1, name) for mlp in mlps for name in ("weight", "bias")]
    scaled = [*expanding, *((mlp.fc2, "weight") for mlp in mlps)]
    layers = [module for module in modules if isinstance(module, (nn.Linear, nn.Conv2d))]
    pairs = [(layer, name) for layer in layers for name, _ in layer.named_parameters(recurse=False)]
    parameters = [*scaled, *(pair for pair in pairs if pair not in scaled)]
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
