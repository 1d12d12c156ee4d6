"""Slimming of any Vision Transformer in one line: `slim`, `unslim` and the loss of a score (docs/slim.md).

Neither it nor what it imports needs a configuration or a library beside torch.
"""

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from numbers import Integral, Real
from typing import Any, TypeVar

import torch
from torch import nn

from demo_sdtps.runtime.errors import UserError, nearest_name
from vit_slim.hooks import FIRST, Slim
from vit_slim.scores import score_class
from vit_slim.scores.base import Score
from vit_slim.stage import check_stages
from vit_slim.state import UNNAMED
from vit_slim.towers import METHODS, Tower, find_towers

NAMES = ("img_size", "image_size", "input_resolution")
"""Attributes, also of a `config`, in which libraries keep the size of images."""
SQUARES = (448, 518, 336, 512, 192, 128, 96, 64, 32)
SIZES = (224, 256, (256, 128), 384, (384, 128), (128, 256), *SQUARES)
"""Usual ones, (height, width) or the side of a square."""
SCORES_BY_NAME = ("saliency", "distinctness", "supervised", "self_supervised")
"""Scores that need neither a configuration nor the size of the grid."""
KEEP = 0.7
"""Of the patches, before the first block and by `saliency`: the cheapest setting of studies/off_the_shelf.py that costs each of
its models at most 1 mAP without training."""
Model = TypeVar("Model", bound=nn.Module)


def slim(
    model: Model,
    blocks: Sequence[int] = (0,),
    keep: Sequence[float] | None = None,
    score: str | Score | Sequence[str | Score] = "saliency",
    *,
    operations: float | None = None,
    merge: bool = True,
    restore: bool = False,
    shared: bool | str = True,
    blocks_at: str | None = None,
    prefix: int | None = None,
    suffix: int = 0,
) -> Model:
    """Let every Vision Transformer in `model` drop patches after `blocks` blocks, 0 for its input, in place; → the model.

    `keep` are the shares of the remaining patches that each stage keeps, KEEP by default, or all stages keep the same share, as
    large as `operations` allows, a share of those of the dense model in its patch convolution and blocks. `score` is one of
    SCORES_BY_NAME, a `Score`, or one for each stage. Dropped patches become one extra token with `merge`, none without. With
    `restore` the output of every block has the whole grid: the kept patches, and the dropped ones as they were when they were
    dropped. `shared`: True, one set for all images of a forward where the score is of the images alone; "first", all keep what
    the first keeps; False, each its own. `blocks_at` is the path of the blocks where they are not found; `prefix` and `suffix`
    are the numbers of tokens before and after the patches.

    A score with weights adds them as `slimming.scores.…`. docs/slim.md has an example for each library:

    >>> import demo_sdtps, timm, torch
    >>> model = demo_sdtps.slim(timm.create_model("vit_tiny_patch16_224"), blocks=(0, 4), keep=(0.5, 0.5))
    >>> logits = model(torch.randn(2, 3, 224, 224))

    Raises `UserError` for what does not fit the model; a copy on the meta device is tried, which changes nothing of it.
    """
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise UserError(f"The model is {model!r:.80}, but must be an nn.Module; give one.")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise UserError(f"{kind} wraps a model already; slim the model, then wrap it.")
    if any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None)
        for module in model.modules()
    ):
        raise UserError(f"{kind} is compiled already; slim the model, then compile it.")
    if shared not in (True, False, FIRST):
        raise UserError(f"shared is {shared!r}; it must be True, False or {FIRST!r}.")
    if operations is not None and (keep is not None or not _is_share(operations)):
        raise UserError(
            f"operations is {operations!r} and keep {keep}; give one of them, operations as a share in (0, 1]."
        )
    if keep is None:
        keep = (KEEP,) * (len(blocks) if isinstance(blocks, Sequence) else 1)
    if not (
        isinstance(blocks, Sequence)
        and isinstance(keep, Sequence)
        and 0 < len(blocks) == len(keep)
        and all(map(_is_count, blocks))
        and list(blocks) == sorted(set(blocks))
        and all(map(_is_share, keep))
    ):
        raise UserError(
            f"blocks is {blocks!r} and keep {keep!r}, but there must be rising whole numbers and one share in (0, 1] for "
            "each, such as (0, 4) and (0.5, 0.5)."
        )
    if not (_is_count(suffix) and (prefix is None or _is_count(prefix))):
        raise UserError(
            f"prefix is {prefix!r} and suffix {suffix!r}; both must be numbers of tokens."
        )
    towers = find_towers(model, blocks_at, prefix, suffix)
    before = vars(model).get("slimming")
    if isinstance(before, Slim) and not before.handles:  # its tower was unslimmed
        del vars(model)["slimming"]
    hooks = (hook for tower in towers for hook in tower.patches._forward_hooks.values())
    owners = (getattr(getattr(hook, "func", None), "__self__", None) for hook in hooks)
    if hasattr(model, "slimming") or any(isinstance(owner, Slim) for owner in owners):
        raise UserError(
            f"{kind} or a part of it is slimmed already; call demo_sdtps.unslim before."
        )
    widths = {tower.patches.out_channels for tower in towers}
    scores = _scores(score, len(blocks), widths)
    settings = {"merge": merge, "restore": restore, "follow": shared, "operations": operations}
    shares = keep if operations is None else ()

    def attach(model: nn.Module, towers: Sequence[Tower], scores: Sequence[Score]) -> Slim:
        return attach_to(model, towers[0].home, towers, blocks, shares, scores, **settings)

    def attach_to_copy(model: nn.Module) -> Slim:
        # By a score that reads nothing but tokens, as those of users need not run there.
        plain = _scores("distinctness", len(blocks), widths)
        return attach(model, find_towers(model, blocks_at, prefix, suffix), plain)

    try_slimming(model, attach_to_copy)
    attach(model, towers, scores)
    return model


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) >= 0


def _is_share(value: Any) -> bool:
    return isinstance(value, Real) and 0 < float(value) <= 1


def attach_to(
    model: nn.Module,
    home: nn.Module,
    towers: Sequence[Tower],
    blocks: Sequence[int],
    keep: Sequence[float],
    scores: Sequence[Score],
    **settings: Any,
) -> Slim:
    """Add slimming with these scores to the towers of a model, whose weights are in the module `home`; `settings` are those of
    `Slim`."""
    kind = type(model).__name__
    for tower in towers:
        check_stages(
            blocks, len(tower.blocks), "blocks", f"{kind}{tower.path and '.' + tower.path}"
        )
    slimming = Slim(towers, blocks, keep, scores, **settings)
    slimming.to(towers[0].patches.weight).train(model.training)
    slimming.attach(model, home)
    return slimming


def unslim(model: Model) -> Model:
    """Take slimming off, in place; → the model."""
    find_slimming(model)
    for module in list(model.modules()):
        slimming = getattr(module, "slimming", None)
        if isinstance(slimming, Slim):
            while slimming.handles:
                slimming.handles.pop().remove()
            vars(module).pop("slimming", None)
            module._modules.pop("slimming", None)
        for name, method in METHODS.items():
            if vars(module).get(name) is method:
                delattr(module, name)
    return model


def slim_loss(model: nn.Module) -> torch.Tensor:
    """The loss of the scores in the last forward in training mode, a scalar with its weight: add it to the model's own.

    Masks of the foreground (B, 1, H, W) in [0, 1] are that forward's argument `foreground`.
    """
    find_slimming(model)
    slims = (module for module in model.modules() if isinstance(module, Slim))
    losses = [loss for slim in slims for loss in slim.call.losses]
    if not losses:
        raise UserError(
            "The last forward had no loss of a score; call the model in training mode, with foreground=masks of "
            "(B, 1, H, W), and slim it by a score that learns: supervised, or self_supervised, without masks."
        )
    return torch.stack([loss.to(losses[0].device) for loss in losses]).mean()


def find_slimming(model: nn.Module) -> Slim:
    """The slimming of a model, or of the one that it wraps."""
    for module in model.modules():
        if isinstance(module, Slim):
            return module
    raise UserError(f"{type(model).__name__} is not slimmed; call demo_sdtps.slim(model) before.")


def _scores(
    score: str | Score | Sequence[str | Score], count: int, widths: set[int]
) -> list[Score]:
    """A score for each of `count` stages, of towers whose tokens have `widths` channels."""
    copies = (copy.deepcopy(score) for _ in range(count - 1))
    each = score if isinstance(score, (list, tuple)) else [score, *copies]
    if len(each) != count:
        raise UserError(f"score has {len(each)} scores for {count} blocks; give one for each.")
    scores = []
    for one in each:
        if one in SCORES_BY_NAME:
            name, one = one, score_class(one)(min(widths), (0, 0), modalities=UNNAMED)
            if len(widths) > 1 and one.state_dict():
                raise UserError(
                    f"score is {name!r}, whose weights are for tokens of one width, but the towers have "
                    f"{' and '.join(map(str, sorted(widths)))} channels; slim each tower by itself."
                )
        elif not isinstance(one, Score):
            raise UserError(
                f"score is {one!r}, but it must be {' or '.join(map(repr, SCORES_BY_NAME))}, or a Score"
                f"{nearest_name(one, SCORES_BY_NAME)}."
            )
        scores.append(one)
    return scores


def try_slimming(model: nn.Module, attach: Callable[[nn.Module], Slim]) -> None:
    """Refuse a model whose forward runs, but not where patches are left out, or leaves none out; `attach` slims a model. Copies
    without memory run, so that nothing changes, neither caches nor random numbers of torch and Python: the whole model, or
    where it takes more than images what is in it, down to each tower. Where none runs, the first forward has to tell."""
    try:
        slimmed = _meta_copy(model)
    except Exception:
        return  # Not every model can be copied.
    slimming = attach(slimmed)
    with ExitStack() as kept:
        kept.callback(random.setstate, random.getstate())
        for each in (torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings()):
            kept.enter_context(each)
        warnings.simplefilter("ignore")
        for tower in slimming.towers:
            slims: list[bool] = []  # of a forward that came to the last block
            note = lambda *_, to=slims: to.append(slimming.call.current is not None)  # noqa: E731
            handle = tower.blocks[-1].register_forward_pre_hook(note)
            names = tower.path.split(".") if tower.path else []
            for count in range(len(names) + 1):
                if not slims and not _runs(model, slimmed, ".".join(names[:count])):
                    slims.clear()
            handle.remove()
            if False in slims:
                raise UserError(
                    f"{type(model).__name__} calls these blocks without its patch convolution, so that no patch would be left "
                    "out; name by blocks_at the blocks that follow it."
                )


def _runs(model: nn.Module, slimmed: nn.Module, path: str) -> bool:
    """Whether what `slimmed` has at `path` runs on images (2, C, H, W) of any size. Refuses what runs for a size but where
    patches are left out: a copy of the dense model, which tells that, is made where a forward fails."""
    module, dense = slimmed.get_submodule(path), None
    stem = next(part for part in module.modules() if isinstance(part, nn.Conv2d))
    for height, width in _sizes(module, stem):
        images = stem.weight.new_empty(2, stem.in_channels, height, width)
        if (error := _error(module, images)) is None:
            return True
        if dense is None:
            dense = _meta_copy(model).get_submodule(path)
        if _error(dense, images) is None:
            break
    else:
        return False
    if isinstance(error, UserError):
        raise error
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise UserError(
        f"{type(module).__name__} runs, but not where patches are left out ({reason}): its blocks need the whole grid, so "
        "that it cannot be slimmed, or what follows them does, which restore=True gives it."
    ) from error


def _error(module: nn.Module, images: torch.Tensor) -> Exception | None:
    """What a forward raises: models raise whatever they like for images of another size."""
    try:
        module(images)
    except Exception as error:
        return error
    return None


def _meta_copy(model: nn.Module) -> nn.Module:
    """A copy on the meta device, without the user's hooks, which may keep what they see; the weights are never copied."""
    memo: dict[int, torch.Tensor] = {id(each): each.detach().to("meta") for each in model.buffers()}
    for each in model.parameters():
        memo[id(each)] = nn.Parameter(each.detach().to("meta"), each.requires_grad)
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return copied


def _sizes(module: nn.Module, stem: nn.Conv2d) -> Iterator[tuple[int, int]]:
    """(height, width) that `module` may need: those that it names, one of many patches, and usual ones."""
    owners = (owner for part in module.modules() for owner in (part, getattr(part, "config", None)))
    named = [getattr(owner, name, None) for owner in owners for name in NAMES]
    sizes = [
        (size, size) if isinstance(size, int) else tuple(size)
        for size in (*named, 64 * stem.stride[0], *SIZES)
        if isinstance(size, (int, tuple, list))
    ]
    yield from dict.fromkeys(sizes)
