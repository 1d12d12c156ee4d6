"""The Vision Transformers in a module: blocks, patch convolution, layout of the tokens (docs/method.md); and how many patches
stages may keep within a share of their operations (docs/slim.md)."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from vit_slim.errors import UserError

NEEDS_ALL = (
    "Swin|Sam(?=[A-Z])|SAM|Hiera|MaxVit|MaxxVit|Beit|BeiT|RelPos|Mixer|ViTMAE|MaskedImageModeling|SemanticSegmentation|"
    "DepthEstimation|ObjectDetection"
)
"""Parts of the names of classes that attend in windows or with fixed biases of positions, mix a fixed grid, mask patches at
random, or whose head lays the patches out as a grid."""
PREFIX_TOKENS = r"\b(cls|class|dist|distillation|reg|register)_(token|tokens|embedding)$"
"""Names of the parameters that are tokens before the patches."""


@dataclass(frozen=True)
class Tower:
    """A Vision Transformer in a module. Before its patches there are prefix tokens (class token, registers)."""

    owner: nn.Module  # of the blocks and the patch convolution
    blocks: list[nn.Module]
    patches: nn.Conv2d
    tokens_first: bool  # (L, B, C) in place of (B, L, C)
    prefix: int | None  # tokens before the patches; None: those that the patches leave
    prefix_count: int  # as far as it is known before the first forward

    def swap(self, values: torch.Tensor) -> torch.Tensor:
        """Tokens as the blocks see them → (B, L, C), and back."""
        return values.transpose(0, 1) if self.tokens_first else values


def find_towers(
    model: nn.Module, blocks_at: str | None = None, prefix: int | None = None
) -> list[Tower]:
    """The Vision Transformers in `model`, in the order of its modules: lists of blocks, each in a module with one convolution
    beside them, for the patches. `blocks_at` is the path of the blocks where they cannot be found; `prefix` is the number of
    tokens before the patches. Raises `UserError` for a model that token pruning does not fit."""
    modules, kind = dict(model.named_modules()), type(model).__name__
    for module in modules.values():
        if re.search(NEEDS_ALL, type(module).__name__):
            raise UserError(
                f"{type(module).__name__} in {kind} attends in windows or with fixed biases, masks patches at random, or "
                "lays them out as a grid, so that none can be left out; slim another backbone, or the encoder alone."
            )
    if blocks_at and not isinstance(modules.get(blocks_at), (nn.Sequential, nn.ModuleList)):
        raise UserError(
            f"blocks_at is {blocks_at!r}, but {kind} has no list of blocks there; give the path of an nn.Sequential or "
            "nn.ModuleList."
        )
    towers: dict[nn.Conv2d, tuple[str, str, list[nn.Conv2d]]] = {}
    for path in [blocks_at] if blocks_at else filter(lambda at: are_blocks(modules[at]), modules):
        owner, inner, stems = path, set(modules[path].modules()), list[nn.Conv2d]()
        while owner and not stems:
            owner = owner.rpartition(".")[0]
            beside = (module for module in modules[owner].modules() if module not in inner)
            stems = [module for module in beside if isinstance(module, nn.Conv2d)]
        # Blocks of text reach the convolution of an image tower beside them from further away.
        if stems and (stems[0] not in towers or len(owner) > len(towers[stems[0]][0])):
            towers[stems[0]] = owner, path, stems
    if not towers:
        raise UserError(
            f"{kind} has no Vision Transformer: no list of blocks in a module with one nn.Conv2d for the patches; name the "
            "blocks by blocks_at."
        )
    for stem, (_, _, stems) in towers.items():
        if (len(stems) > 1 and not blocks_at) or stem.padding not in ((0, 0), "valid"):
            raise UserError(
                f"{kind} makes its patches by several convolutions or one that pads; token pruning needs one without padding: "
                "choose another backbone, or blocks_at if the first makes them."
            )
    return [
        make_tower(modules[owner], modules[path], stem, prefix)
        for stem, (owner, path, _) in towers.items()
    ]


def are_blocks(module: nn.Module) -> bool:
    """Whether a module is a list of Transformer blocks: of one class, with several matrices and no convolution each."""
    if not isinstance(module, (nn.Sequential, nn.ModuleList)) or len({*map(type, module)}) != 1:
        return False
    has_convolution = any(isinstance(inner, nn.Conv2d) for inner in module.modules())
    return sum(weight.ndim == 2 for weight in module[0].parameters()) > 2 and not has_convolution


def make_tower(
    owner: nn.Module, blocks: nn.Module, patches: nn.Conv2d, prefix: int | None
) -> Tower:
    """The tower of a module `owner`."""
    inner = list(blocks.children())
    if getattr(owner, "local_feature", False):  # TransReID's; its head has copies of the last block
        inner.pop()
    # nn.MultiheadAttention, and open_clip's own attention.
    tokens_first = False in [getattr(part, "batch_first", None) for part in inner[0].modules()]
    if prefix is None:  # timm's
        prefix = getattr(owner, "num_prefix_tokens", None)
    named = owner.named_parameters()
    tokens = [weight.numel() for name, weight in named if re.search(PREFIX_TOKENS, name)]
    count = sum(tokens) // patches.out_channels if prefix is None else prefix
    return Tower(owner, inner, patches, tokens_first, prefix, count)


def plan_counts(
    operations: float, towers: Sequence[Tower], blocks: Sequence[int], merge: bool, patches: int
) -> tuple[int, ...]:
    """Patches of a grid of `patches` that stages before `blocks` leave, all k / `patches` of those before it, with the largest
    k for which the towers take at most the share `operations`; with `merge` each stage adds a token."""

    def macs(k: int) -> int:
        total = 0
        for tower in towers:
            left, others, width = patches, tower.prefix_count, tower.patches.out_channels
            total += patches * tower.patches.weight.numel()
            for index, block in enumerate(tower.blocks):
                if index in blocks:
                    before, left = left, -(-left * k // patches)
                    others += merge and left < before
                weights = sum(weight.numel() for weight in block.parameters() if weight.ndim > 1)
                total += (left + others) * (weights + 2 * (left + others) * width)
        return total

    budget = operations * macs(patches)
    k = bisect_right(range(1, patches + 1), budget, key=macs)
    if not k:
        raise UserError(
            f"operations is {operations:g}, but more are left where one patch is kept after block {blocks[0]}; raise it, or "
            "drop patches after an earlier block."
        )
    return tuple(accumulate(blocks, lambda left, _: -(-left * k // patches), initial=patches))[1:]
