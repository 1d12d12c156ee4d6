"""The Vision Transformers in a module: their blocks, their patch convolution, the layout of their tokens (docs/method.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from demo_sdtps.runtime.errors import UserError


@dataclass(frozen=True)
class Layout:
    """How the tokens of a Vision Transformer stand at the input of its blocks: prefix tokens, patches, suffix tokens."""

    depth: int
    tokens_first: bool = False  # (L, B, C) in place of (B, L, C)
    prefix: int | None = None  # tokens before the patches; None: those that the others leave
    suffix: int = 0


@dataclass(frozen=True)
class Tower:
    """A Vision Transformer in a module."""

    path: str  # from the module
    blocks: list[nn.Module]
    patches: nn.Conv2d
    layout: Layout
    has_class: bool


CLASSES = {
    "timm.models.vision_transformer.VisionTransformer": ("blocks", "patch_embed.proj"),
    "timm.models.eva.Eva": ("blocks", "patch_embed.proj"),
    "torchvision.models.vision_transformer.VisionTransformer": ("encoder.layers", "conv_proj"),
    **{
        f"transformers.models.{name}": (blocks, f"embeddings.{patches}")
        for name, blocks, patches in (
            ("vit.modeling_vit.ViTModel", "layers", "patch_embeddings.projection"),
            ("clip.modeling_clip.CLIPVisionModel", "encoder.layers", "patch_embedding"),
            ("clip.modeling_clip.CLIPVisionTransformer", "encoder.layers", "patch_embedding"),
            ("dinov2.modeling_dinov2.Dinov2Model", "encoder.layer", "patch_embeddings.projection"),
            (
                "dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersModel",
                "encoder.layer",
                "patch_embeddings.projection",
            ),
        )
    },
}
"""Paths of the blocks and of the patch convolution by class. OpenAI's CLIP, of which there are many copies, is known by its
parts, and so is open_clip."""
CLIP_PATHS = ("transformer.resblocks", "conv1")
BEFORE_5 = {"layers": "encoder.layer"}  # of transformers
KNOWN = "timm's VisionTransformer and Eva, CLIP's image tower, open_clip, torchvision, transformers' ViT, CLIP and DINOv2"
CLASS_TOKENS = ("cls_token", "class_token", "class_embedding")

REFUSED = {
    "Swin|Sam(?=[A-Z])|SAM|Hiera|MaxVit|MaxxVit": "attends in windows",
    "Beit|BeiT|RelPos": "adds a fixed bias for every pair of positions",
}
"""What another architecture, by a part of the name of its class, does, so that no patch can be left out."""


def find_towers(
    model: nn.Module, blocks_at: str | None = None, prefix: int | None = None, suffix: int = 0
) -> list[Tower]:
    """The Vision Transformers in `model`, in the order of its modules; towers of text have no patch convolution and are none.

    `blocks_at` is the path of the blocks where they cannot be found; `prefix` and `suffix` are the numbers of tokens before
    and after the patches.
    """
    if blocks_at:
        places = [_blocks_at(model, blocks_at)]
    else:
        places = [
            (path, *parts)
            for path, module in model.named_modules()
            if (parts := _blocks_and_stem(module))
        ]
    if (blocks_at or not places) and (
        reason := _refusal(model.get_submodule(places[0][0]) if places else model)
    ):
        raise UserError(
            f"{reason}, so that no patch can be left out; choose another backbone: slimming knows {KNOWN}."
        )
    if not places:
        raise UserError(
            f"{type(model).__name__} has no Vision Transformer that slimming knows ({KNOWN}); name the blocks of "
            "another one by blocks_at."
        )
    return [
        _tower(model, place, blocks, patches, prefix, suffix) for place, blocks, patches in places
    ]


def _tower(
    model: nn.Module,
    path: str,
    blocks: nn.Module,
    patches: nn.Module,
    prefix: int | None,
    suffix: int,
) -> Tower:
    what = f"{type(model).__name__}{path and '.' + path}"
    if not isinstance(patches, nn.Conv2d):
        raise UserError(
            f"{what} makes its patches by {type(patches).__name__}, but slimming needs one convolution, whose "
            "output is the grid of patches; choose a backbone without a convolutional stem."
        )
    inner = list(blocks.children())
    names = [name for name, _ in model.get_submodule(path).named_parameters()]
    if prefix is None:  # timm's
        prefix = getattr(model.get_submodule(path), "num_prefix_tokens", None)
    has_class = any(name.rpartition(".")[2] in CLASS_TOKENS for name in names)
    # nn.MultiheadAttention, and open_clip's own attention.
    first = [getattr(module, "batch_first", None) for module in inner[0].modules()]
    layout = Layout(len(inner), False in first, prefix, suffix)
    return Tower(path, inner, patches, layout, has_class)


def _blocks_and_stem(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """Blocks and patch convolution of a Vision Transformer that is known."""
    names = [f"{base.__module__}.{base.__qualname__}" for base in type(module).__mro__]
    for blocks, patches in (*(CLASSES[name] for name in names if name in CLASSES), CLIP_PATHS):
        inner = _at(module, blocks) or _at(module, BEFORE_5.get(blocks, ""))
        stem, around = _at(module, patches), _at(module, patches.partition(".")[0])
        if isinstance(inner, (nn.Sequential, nn.ModuleList)) and len(inner) and stem is not None:
            convolutions = [
                layer for layer in (around or stem).modules() if isinstance(layer, nn.Conv2d)
            ]
            is_one = len(convolutions) == 1 and convolutions[0] is stem
            return inner, stem if is_one else around or stem
    return None


def _blocks_at(model: nn.Module, blocks_at: str) -> tuple[str, nn.Module, nn.Module]:
    blocks = _at(model, blocks_at)
    if not isinstance(blocks, (nn.Sequential, nn.ModuleList)) or not len(blocks):
        raise UserError(
            f"blocks_at is {blocks_at!r}, but {type(model).__name__} has no list of blocks there; give the path of "
            "an nn.Sequential or nn.ModuleList."
        )
    owner = blocks_at
    while owner:
        owner = owner.rpartition(".")[0]
        candidates = [
            module
            for module in model.get_submodule(owner).modules()
            if isinstance(module, nn.Conv2d)
            and all(module is not other for other in blocks.modules())
        ]
        if candidates:
            return owner, blocks, candidates[0]
    raise UserError(
        f"blocks_at is {blocks_at!r}, but {type(model).__name__} has no nn.Conv2d beside these blocks, whose "
        "output is the grid of patches; slimming needs one."
    )


def _refusal(model: nn.Module) -> str:
    """The class of a part of a model to which slimming does not fit, and why; '' for none."""
    return next(
        (
            f"{type(module).__name__} {reason}"
            for module in model.modules()
            for kind, reason in REFUSED.items()
            if re.search(kind, type(module).__name__)
        ),
        "",
    )


def _at(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path) if path else None
    except AttributeError:
        return None
