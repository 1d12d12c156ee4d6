"""A forward of a slimmed copy of a model on the meta device, before the model itself is slimmed (docs/slim.md)."""

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from torch import nn

from demo_sdtps.modeling.slimming.hooks import Slim
from demo_sdtps.runtime.errors import UserError

NAMES = ("img_size", "image_size", "input_resolution")
"""Attributes, also of a `config`, in which libraries keep the size of images."""
SIZES = (
    224,
    256,
    (256, 128),
    384,
    (384, 128),
    (128, 256),
    448,
    518,
    336,
    512,
    192,
    128,
    96,
    64,
    32,
)
"""Usual ones, (height, width) or the side of a square."""


def try_slimming(model: nn.Module, attach: Callable[[nn.Module], Slim]) -> None:
    """Refuse a model whose forward runs, but not where patches are left out, or leaves none out; `attach` slims a model.

    Copies without memory run, so that nothing changes, neither caches nor random numbers of torch and Python: the whole model,
    or where it takes more than images what is in it, down to each tower. Where none runs, the first forward has to tell.
    """
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
    for size in dict.fromkeys((*named, 64 * stem.stride[0], *SIZES)):
        sides = (size, size) if isinstance(size, int) else size
        if isinstance(sides, tuple):
            yield sides
