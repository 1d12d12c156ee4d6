"""The Vision Transformers in a module: blocks, patch convolution, layout of the tokens (docs/method.md); and how many patches
stages may keep within a share of their operations (docs/slim.md)."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeGuard

import torch
from torch import nn

from vit_slim.errors import UserError


@dataclass(frozen=True)
class Tower:
    """A Vision Transformer in a module. Before its patches there are prefix tokens (class token, registers)."""

    path: str  # from the module
    blocks: list[nn.Module]
    patches: nn.Conv2d
    tokens_first: bool  # (L, B, C) in place of (B, L, C)
    prefix: int | None  # tokens before the patches; None: those that the patches leave
    prefix_count: int  # as far as it is known before the first forward
    home: nn.Module  # where the scores can be: no forward goes over its children

    def swap(self, values: torch.Tensor) -> torch.Tensor:
        """Tokens as the blocks see them → (B, L, C), and back."""
        return values.transpose(0, 1) if self.tokens_first else values


CLASSES = {
    ("blocks", "patch_embed.proj"): {"timm.VisionTransformer", "timm.Eva", "TransReID"},
    ("encoder.layers", "conv_proj"): {"torchvision.VisionTransformer"},
    ("layers", "embeddings.patch_embeddings.projection"): {
        f"transformers.{name}Model" for name in ("ViT", "DeiT", "ViTMAE")
    },
    ("encoder.layers", "embeddings.patch_embedding"): {
        f"transformers.{name}Vision{kind}"
        for name in ("CLIP", "Siglip")
        for kind in ("Model", "Transformer")
    },
    ("encoder.layer", "embeddings.patch_embeddings.projection"): {
        f"transformers.Dinov2{kind}Model" for kind in ("", "WithRegisters")
    },
    ("model.layer", "embeddings.patch_embeddings"): {"transformers.DINOv3ViTModel"},
}
"""Library and class, or a class that code bases copy, by the paths of the blocks and of the patch convolution. OpenAI's
CLIP, of which there are many copies, and open_clip are known by their parts."""
CLIP_PATHS = ("transformer.resblocks", "conv1")
BEFORE_5 = {"layers": "encoder.layer", "model.layer": "layer"}  # of transformers
KNOWN = (
    "timm's VisionTransformer and Eva, CLIP's image tower, open_clip, torchvision, TransReID, transformers' ViT, DeiT, ViTMAE, "
    "CLIP, SigLIP, DINOv2 and DINOv3"
)
PREFIX_TOKENS = (
    "cls_token",
    "class_token",
    "class_embedding",
    "distillation_token",
    "register_tokens",
)

REFUSED = "Swin|Sam(?=[A-Z])|SAM|Hiera|MaxVit|MaxxVit|Beit|BeiT|RelPos|Mixer"
"""Parts of the names of classes that attend in windows or with fixed biases of positions, or mix a fixed grid."""
DENSE_HEADS = (
    "ViTMAEDecoder|MaskedImageModeling|SemanticSegmentation|DepthEstimation|ObjectDetection"
)
"""Parts of the names of classes whose head lays the patches out as a grid."""


def find_towers(
    model: nn.Module, blocks_at: str | None = None, prefix: int | None = None
) -> list[Tower]:
    """The Vision Transformers in `model`, in the order of its modules; towers of text have no patch convolution and are none.
    `blocks_at` is the path of the blocks where they cannot be found; `prefix` is the number of tokens before the patches.
    Raises `UserError` for a model that token pruning does not fit."""
    if blocks_at:
        places = [_blocks_at(model, blocks_at)]
    else:
        candidates = ((path, _blocks_and_stem(module)) for path, module in model.named_modules())
        places = [(path, *parts) for path, parts in candidates if parts]
    if blocks_at or not places:
        owner = model.get_submodule(places[0][0]) if places else model
        kinds = (type(module).__name__ for module in owner.modules())
        if kind := next((kind for kind in kinds if re.search(REFUSED, kind)), None):
            raise UserError(
                f"{kind} attends in windows or with fixed biases, so that no patch can be left out; choose another "
                f"backbone: slimming knows {KNOWN}."
            )
    if not places:
        raise UserError(
            f"{type(model).__name__} has no Vision Transformer that slimming knows ({KNOWN}); name the blocks by blocks_at."
        )
    kinds = (type(module).__name__ for module in model.modules())
    if kind := next((kind for kind in kinds if re.search(DENSE_HEADS, kind)), None):
        raise UserError(
            f"{kind} lays the patches out as a grid, so that none can be left out; slim the encoder alone, for a head that "
            "pools them."
        )
    towers = (_tower(model, place, prefix) for place in places)
    # A class that is not known may call its children one after the other.
    return [replace(tower, home=tower.patches) if blocks_at else tower for tower in towers]


Place = tuple[str, nn.Module, nn.Module]  # path of a tower, its blocks, what makes its patches


def _tower(model: nn.Module, place: Place, prefix: int | None) -> Tower:
    path, blocks, patches = place
    if not isinstance(patches, nn.Conv2d):
        raise UserError(
            f"{type(model).__name__}{path and '.' + path} makes its patches by {type(patches).__name__}, but "
            "slimming needs one convolution; choose a backbone without a convolutional stem."
        )
    owner, inner = model.get_submodule(path), list(blocks.children())
    if getattr(owner, "local_feature", False):  # TransReID's; its head has copies of the last block
        inner.pop()
    named = {name.rpartition(".")[2]: weight for name, weight in owner.named_parameters()}
    if prefix is None:  # timm's
        prefix = getattr(owner, "num_prefix_tokens", None)
    # nn.MultiheadAttention, and open_clip's own attention.
    tokens_first = False in [getattr(part, "batch_first", None) for part in inner[0].modules()]
    tokens = (
        named[name].numel() // patches.out_channels for name in named.keys() & set(PREFIX_TOKENS)
    )
    count = sum(tokens) if prefix is None else prefix
    return Tower(path, inner, patches, tokens_first, prefix, count, owner)


def _blocks_and_stem(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """Blocks and patch convolution of a Vision Transformer that is known; in place of several convolutions what has them."""
    bases = type(module).__mro__
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in bases}
    names |= {base.__name__ for base in bases}
    paths = [paths for paths, classes in CLASSES.items() if names & classes]
    for blocks_path, stem_path in [*paths, CLIP_PATHS]:
        blocks = module_at(module, blocks_path) or module_at(module, BEFORE_5.get(blocks_path, ""))
        stem, around = module_at(module, stem_path), module_at(module, stem_path.partition(".")[0])
        if _is_list(blocks) and stem is not None and around is not None:
            convolutions = [part for part in around.modules() if isinstance(part, nn.Conv2d)]
            return blocks, stem if convolutions == [stem] else around
    return None


def _blocks_at(model: nn.Module, path: str) -> Place:
    blocks, kind, owner = module_at(model, path), type(model).__name__, path
    if not _is_list(blocks):
        raise UserError(
            f"blocks_at is {path!r}, but {kind} has no list of blocks there; give the path of an nn.Sequential or "
            "nn.ModuleList."
        )
    while owner:
        owner = owner.rpartition(".")[0]
        for module in model.get_submodule(owner).modules():
            if isinstance(module, nn.Conv2d) and module not in set(blocks.modules()):
                return owner, blocks, module
    raise UserError(
        f"blocks_at is {path!r}, but {kind} has no nn.Conv2d beside these blocks; slimming needs one, for the patches."
    )


def _is_list(blocks: nn.Module | None) -> TypeGuard[nn.Module]:
    return isinstance(blocks, (nn.Sequential, nn.ModuleList)) and len(blocks) > 0


def module_at(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path) if path else None
    except AttributeError:
        return None


def plan_counts(
    operations: float, towers: Sequence[Tower], blocks: Sequence[int], merge: bool, patches: int
) -> tuple[int, ...]:
    """Patches of a grid of `patches` that stages before `blocks` leave, all k / `patches` of those before it, with the largest
    k for which the towers take at most the share `operations`; with `merge` each stage adds a token."""

    def macs(k: int) -> int:
        total = 0
        for tower in towers:
            left, others = patches, tower.prefix_count
            total += patches * tower.patches.weight.numel()
            for index, block in enumerate(tower.blocks):
                if index in blocks:
                    before, left = left, -(-left * k // patches)
                    others += merge and left < before
                weights = sum(weight.numel() for weight in block.parameters() if weight.ndim > 1)
                total += (left + others) * (
                    weights + 2 * (left + others) * tower.patches.out_channels
                )
        return total

    dense = macs(patches)
    k = bisect_right(range(1, patches + 1), operations, key=lambda k: macs(k) / dense)
    if not k:
        raise UserError(
            f"operations is {operations:g}, but {macs(1) / dense:.3f} of them are left where one patch is kept after block "
            f"{blocks[0]}; raise it, or drop patches after an earlier block."
        )
    left = accumulate(blocks, lambda left, _: -(-left * k // patches), initial=patches)
    return tuple(left)[1:]
