"""The Vision Transformers in a module: blocks, patch convolution, layout of the tokens (docs/method.md); and how many patches
stages may keep within a share of their operations (docs/slim.md)."""

import re
from collections.abc import Sequence
from inspect import signature
from itertools import accumulate

import torch
from torch import nn

from vit_slim.errors import UserError

NEEDS_ALL = (
    "Swin|Sam(?=[A-Z])|SAM|Hiera|MaxVit|MaxxVit|Beit|BeiT|RelPos|Mixer|ViTMAE|MaskedImageModeling|"
    "SemanticSegmentation|DepthEstimation|DepthPro|ObjectDetection|Vilt"
)
OF_TRANSFORMERS = (
    r"Segmentation|PoseEstimation|Matting|Yolos|(Dinov2\w*|DINOv3ViT|Pixio|Tipsv2Vision)Backbone"
)
"""Parts of the names of classes that attend in windows or with fixed biases of positions, mix a fixed grid, mask patches at
random, lay the patches out as a grid, or have tokens after them; the second, of classes of transformers alone."""
PREFIX_TOKENS = r"\b(cls|class|dist|distillation|reg|register)_(token|tokens|embedding)$"
"""Names of the parameters that are tokens before the patches."""


class Tower:
    """A Vision Transformer: the module `owner` of a list of blocks and a patch convolution. Before its patches there are
    `prefix` tokens (class token, registers)."""

    def __init__(self, owner: nn.Module, blocks: nn.Module, patches: nn.Conv2d, prefix: int | None):
        self.owner, self.blocks, self.patches = owner, list(blocks.children()), patches
        if getattr(owner, "local_feature", False):  # TransReID's head has copies of the last block
            self.blocks.pop()
        self.arguments = tuple(signature(self.blocks[0].forward).parameters)  # of each block
        # Of the weights that multiply each token in a block, the number.
        matrices = [[each for each in block.parameters() if each.ndim > 1] for block in self.blocks]
        self.weights = [sum(map(torch.numel, each)) for each in matrices]
        # (L, B, C) in place of (B, L, C): nn.MultiheadAttention, and open_clip's own attention.
        orders = [getattr(part, "batch_first", None) for part in self.blocks[0].modules()]
        self.tokens_first = False in orders
        # timm's; None: as many as the patches leave
        self.prefix = getattr(owner, "num_prefix_tokens", None) if prefix is None else prefix
        named = owner.named_parameters()
        tokens = [weight.numel() for name, weight in named if re.search(PREFIX_TOKENS, name)]
        least = sum(tokens) // patches.out_channels
        # as far as it is known before the first forward
        self.prefix_count: int = least if self.prefix is None else self.prefix

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
        dense = type(module)
        is_theirs = dense.__module__.startswith("transformers.")
        names = f"{NEEDS_ALL}|{OF_TRANSFORMERS}" if is_theirs else NEEDS_ALL
        if re.search(names, dense.__name__):
            raise UserError(
                f"{type(module).__name__} in {kind} attends in windows or with fixed biases, masks patches at random, "
                "lays them out as a grid or adds tokens after them, so that none can be left out; slim another backbone, or "
                "the encoder alone."
            )
    towers: dict[nn.Conv2d, tuple[str, str, int]] = {}
    for path, module in modules.items():
        is_list = isinstance(module, (nn.Sequential, nn.ModuleList))
        if not is_list or not (path == blocks_at if blocks_at else are_blocks(module)):
            continue
        owner, inner, stems = path, set(module.modules()), list[nn.Conv2d]()
        while owner and not stems:
            owner = owner.rpartition(".")[0]
            beside = (other for other in modules[owner].modules() if other not in inner)
            stems = [other for other in beside if isinstance(other, nn.Conv2d)]
        # Blocks of text reach the convolution of an image tower beside them from further away.
        if stems and (stems[0] not in towers or len(owner) > len(towers[stems[0]][0])):
            towers[stems[0]] = owner, path, len(stems)
    has_one = all(blocks_at or count == 1 for *_, count in towers.values())
    if not (towers and has_one and all(stem.padding in ((0, 0), "valid") for stem in towers)):
        raise UserError(
            f"{kind} has no Vision Transformer of a list of blocks (blocks_at is {blocks_at!r}) and, beside it, one nn.Conv2d "
            "without padding that makes the patches; name the nn.Sequential or nn.ModuleList of blocks by blocks_at, also "
            "where there are several convolutions of which the first makes the patches, or choose another backbone."
        )
    parts = [(modules[owner], modules[path], stem) for stem, (owner, path, _) in towers.items()]
    return [Tower(*each, prefix) for each in parts]


def are_blocks(module: nn.Sequential | nn.ModuleList) -> bool:
    """Whether a list is of Transformer blocks: of one class, with several matrices and no convolution each."""
    if len({*map(type, module)}) != 1:
        return False
    has_convolution = any(isinstance(inner, nn.Conv2d) for inner in module.modules())
    return sum(weight.ndim == 2 for weight in module[0].parameters()) > 2 and not has_convolution


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
            for index, weights in enumerate(tower.weights):
                if index in blocks:
                    before, left = left, -(-left * k // patches)
                    others += merge and left < before
                total += (left + others) * (weights + 2 * (left + others) * width)
        return total

    k, limit, budget = 0, patches, operations * macs(patches)
    while k < limit:
        middle = (k + limit + 1) // 2
        k, limit = (middle, limit) if macs(middle) <= budget else (k, middle - 1)
    if not k:
        raise UserError(
            f"operations is {operations:g}, but more are left where one patch is kept after block {blocks[0]}; raise it, or "
            "drop patches after an earlier block."
        )
    return tuple(accumulate(blocks, lambda left, _: -(-left * k // patches), initial=patches))[1:]
