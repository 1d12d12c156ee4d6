"""Token pruning of any Vision Transformer in one line: `slim`, `unslim`, and the loss of a score (docs/slim.md)."""

import copy
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import torch
from torch import nn

from vit_slim.errors import UserError
from vit_slim.scores import SCORES
from vit_slim.stage import Score, check_stages
from vit_slim.towers import find_towers
from vit_slim.wrap import Slimming, Wrapped, unwrap

KEEP = 0.7
"""Of the patches, before the first block and by `saliency` (docs/results.md has what it costs)."""
Model = TypeVar("Model", bound=nn.Module)
WRAPPERS = nn.DataParallel, nn.parallel.DistributedDataParallel, torch._dynamo.OptimizedModule


def slim(
    model: Model,
    blocks: Sequence[int] = (0,),
    keep: Sequence[float] | None = None,
    score: str | Score | type[Score] | Sequence[str | Score | type[Score]] = "saliency",
    *,
    operations: float | None = None,
    merge: bool = True,
    shared: bool = True,
    blocks_at: str | None = None,
    prefix: int | None = None,
) -> Model:
    """Let every Vision Transformer in `model` drop patches after `blocks` blocks, 0 for its input, in place; → the model.

    `keep` are the shares of the remaining patches that each stage keeps, KEEP by default, or all stages keep the same share, as
    large as `operations` allows, a share of those of the dense model in its patch convolution and blocks. `score` is a name of
    SCORES, a `Score`, its class, which is called with the width, the grid (0, 0) and `keep`, or one for each stage. Dropped
    patches become one extra token with `merge`, none without. With `shared` the images of a forward keep one set where the
    score is of the images alone, else each its own. `blocks_at` is the path of the blocks where they are not found; `prefix` is
    the number of tokens before the patches.

    A score with weights adds them as `slimming.scores.…`. docs/slim.md has an example for each library:

    >>> import timm, torch, vit_slim
    >>> model = vit_slim.slim(timm.create_model("vit_tiny_patch16_224"), blocks=(0, 4), keep=(0.5, 0.5))
    >>> logits = model(torch.randn(2, 3, 224, 224))

    Raises `UserError` for what does not fit the model, here or at the first forward where it shows.
    """
    kind = type(model).__name__
    for module in model.modules():
        if isinstance(module, (*WRAPPERS, Wrapped)) or getattr(module, "_compiled_call_impl", None):
            raise UserError(
                f"{type(module).__name__} in {kind} is slimmed, compiled or wrapped already; slim the plain model, after "
                "vit_slim.unslim where it is slimmed, and compile or wrap it then."
            )
    stages = blocks if hasattr(blocks, "__len__") else ()
    shares = (KEEP,) * len(stages) if keep is None else keep
    copies = (copy.deepcopy(score) for _ in stages[1:])
    given: Sequence[Any] = score if isinstance(score, (list, tuple)) else [score, *copies]
    scores: Sequence[Any] = [SCORES.get(one, one) if isinstance(one, str) else one for one in given]
    if not (
        all(isinstance(block, Integral) for block in stages)
        and list(stages) == sorted(set(stages))
        and hasattr(shares, "__len__")
        and 0 < len(stages) == len(shares) == len(scores)
        and all(isinstance(share, Real) and 0 < share <= 1 for share in shares)
        and (operations is None or (isinstance(operations, Real) and 0 < operations <= 1))
        and (operations is None or keep is None)
        and all(issubclass(one if isinstance(one, type) else type(one), Score) for one in scores)
    ):
        raise UserError(
            f"blocks is {blocks!r}, keep {keep!r}, operations {operations!r} and score {str(score)[:80]!r}, but there must be "
            "rising whole numbers, for each one share in (0, 1], such as (0, 4) and (0.5, 0.5), or in place of these shares "
            f"operations, and for each one score, a Score, its class or {' or '.join(SCORES)}."
        )
    towers = find_towers(model, blocks_at, prefix)
    inside = (part for tower in towers for part in (tower.patches, *tower.blocks))
    if changed := [part for part in (model, *inside) if "forward" in vars(part)]:
        raise UserError(
            f"The forward of {type(changed[0]).__name__} in {kind} was replaced; slim the model before it is."
        )
    check_stages(blocks, min(len(tower.blocks) for tower in towers), "blocks", kind)
    width = towers[0].patches.out_channels
    scorers = [one(width, (0, 0), keep=shares) if isinstance(one, type) else one for one in scores]
    # A class that is not known may call its children one after the other, as nn.Sequential does.
    is_list = blocks_at or isinstance(towers[0].owner, nn.Sequential)
    home = towers[0].patches if is_list else towers[0].owner
    Slimming(blocks, shares, scorers, merge, shared, towers, operations).attach(model, home)
    return model


def unslim(model: Model) -> Model:
    """Give the dense model back, in place; → the model. Raises `UserError` where it is not slimmed."""
    modules = list(model.modules())
    if not any(isinstance(module, Wrapped) for module in modules):
        raise UserError(f"{type(model).__name__} is not slimmed; call vit_slim.slim(model) before.")
    for module in modules:
        unwrap(module)
    return model


def slim_loss(model: nn.Module) -> torch.Tensor:
    """The loss of the scores in the last forward in training mode, a scalar with its weight: add it to the model's own.

    Raises `UserError` where that forward had no loss, or one without gradient, as in reentrant checkpointing.
    """
    slims = [module for module in model.modules() if isinstance(module, Slimming)]
    losses = [loss for slimming in slims for loss in slimming.losses]
    learns = any(weight.requires_grad for one in slims for weight in one.parameters())
    needs_gradient = torch.is_grad_enabled() and learns
    if not losses or (needs_gradient and not any(loss.requires_grad for loss in losses)):
        raise UserError(
            "The last forward has no loss of a score with a gradient; call the slimmed model in training mode, slim it by a "
            "score that learns (vit_slim.Score.loss), and use use_reentrant=False where checkpointing computes it again."
        )
    return torch.stack([loss.to(losses[0].device) for loss in losses]).mean()
