"""Slimming (MODEL.SLIM_BLOCKS) in a model of a DeMo checkout (docs/plug_in.md, modeling/slimming.py).

DeMo's forward calls its BACKBONE once per modality. The first call encodes the three images in one batch, so that they can
share a set of patches, and every call returns its modality's part. In that batch the first slimmed block runs slimming and all
blocks behind it, which then pass on what they get; DeMo's own code embeds the images before and normalises the tokens after.

Replicas of nn.DataParallel run in threads, so that a pass belongs to one thread.
"""
from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block
from torch import nn

from demo_sdtps.config.check import check_stages
from demo_sdtps.config.common import MISSING_CASES, MODALITIES
from demo_sdtps.config.scores import score_entry
from demo_sdtps.modeling.slimming import Slimming
from demo_sdtps.modeling.tokens import Tokens
from demo_sdtps.plug_in.patch import Patched, make_patched
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from yacs.config import CfgNode

TOWERS = {"CLIP": ("transformer.resblocks", True), "ImageNet": ("blocks", False)}
"""The blocks of DeMo's backbones, below BACKBONE.base, and whether their layout is (tokens, batch, width)."""

_thread = threading.local()


class Tower:
    """DeMo's backbone in the form in which slimming calls one (modeling/backbones/base.py)."""

    precision = None  # autocast is the checkout's

    def __init__(self, base: Any, grid_size: tuple[int, int]):
        self.blocks, self.tokens_first = _blocks_of(base)
        self.grid_size, self.num_patches = grid_size, grid_size[0] * grid_size[1]
        views = [_as_timms(block) for block in self.blocks]
        self.vit = SimpleNamespace(blocks=views, num_prefix_tokens=1, embed_dim=views[0].norm1.normalized_shape[0])
        projection = base.conv1 if hasattr(base, "conv1") else base.patch_embed.proj  # CLIP's, and ImageNet's
        self.patch_windows = tuple(projection.kernel_size), tuple(projection.stride)
        self.arguments: tuple = ()
        self.named: dict[str, Any] = {}

    def swapped(self, values: torch.Tensor) -> torch.Tensor:
        """Tokens in the layout of the blocks → (batch, tokens, width), and back."""
        return values.transpose(0, 1) if self.tokens_first else values

    def run_blocks(self, tokens: Tokens, start: int, stop: int) -> Tokens:
        values = self.swapped(tokens.values)
        for block in self.blocks[start:stop]:
            values = block(values, *self.arguments, **self.named)
        return tokens.with_values(self.swapped(values))

    @staticmethod
    def block_arguments(tokens: Tokens) -> Callable[[int], dict[str, Any]]:
        return lambda index: {}

    @staticmethod
    def finish(values: torch.Tensor) -> torch.Tensor:
        return values  # the checkout's code does

    @staticmethod
    def ready(device: torch.device) -> nullcontext:
        return nullcontext()

    @staticmethod
    def chunks(*tensors: torch.Tensor, images_each: int = 1) -> list[tuple[torch.Tensor, ...]]:
        return [(tensor,) for tensor in tensors]


class SlimPass:
    """One forward of one model: images (B, 3, H, W) by modality, those of `missing` ones zeros."""

    def __init__(self, model: SlimForward, images: dict[str, torch.Tensor], missing: frozenset[str]):
        self.model, self.missing = model, missing
        self.images = {name: torch.zeros_like(image) if name in missing else image for name, image in images.items()}
        self.tower = Tower(model.BACKBONE.base, model.slim_grid)
        self.waiting: list[tuple[torch.Tensor, ...]] = []  # the modalities' parts that BACKBONE has not returned yet
        self.calls = 0
        self.state = "before"  # the first slimmed block; then "inside" slimming, then "behind" it
        self.loss: torch.Tensor | None = None

    def __enter__(self) -> SlimPass:
        self.outer, _thread.seen = getattr(_thread, "seen", None), self
        return self

    def __exit__(self, *error: object) -> None:
        _thread.seen = self.outer

    def encode(self, forward: Callable, image: torch.Tensor, *arguments: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        """What the backbone's `forward` returns for the image of the next modality."""
        name = MODALITIES[self.calls % len(MODALITIES)]
        self.calls += 1
        if self.calls > len(MODALITIES) or image.shape != self.images[name].shape \
                or not (name in self.missing or image is self.images[name]):
            raise UserError(f"{type(self.model).__name__}.forward called BACKBONE for other images than those of RGB, NI and "
                            "TI as they are, once each, which slimming encodes together; leave MODEL.SLIM_BLOCKS empty.")
        if not self.waiting:
            count, whole = len(image), torch.cat(list(self.images.values()))

            def repeated(value: Any) -> Any:
                """Labels of cameras (B,) → (3B,)."""
                is_label = isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == count
                return torch.cat([value] * len(MODALITIES)) if is_label else value

            output = forward(whole, *map(repeated, arguments), **{key: repeated(value) for key, value in named.items()})
            self.waiting = list(zip(*(part.chunk(len(MODALITIES)) for part in output), strict=True))
        return self.waiting.pop(0)

    def run(self, forward: Callable, values: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        """What a slimmed block returns, whose own `forward` slimming calls in its turn."""
        if self.state == "inside":
            return forward(values, *arguments, **named)
        if self.state == "behind":
            return values
        tower = self.tower
        tower.arguments, tower.named, self.state = arguments, named, "inside"
        stem = dict(zip(MODALITIES, tower.swapped(values).chunk(len(MODALITIES)), strict=True))
        slimmed = self.model.slimming(tower, stem, self.missing, self.images)
        self.state, self.loss = "behind", slimmed.loss
        rows = [torch.cat([slimmed.class_tokens[name].unsqueeze(1), slimmed.tokens[name]], dim=1) for name in MODALITIES]
        return tower.swapped(torch.cat(rows))


def _current() -> SlimPass | None:
    return getattr(_thread, "seen", None)


class SlimForward(Patched, nn.Module):
    """The forward of a slimmed model."""

    suffix = "Slim"
    BACKBONE: Any
    slimming: Slimming
    slim_grid: tuple[int, int]
    slim_missing: frozenset[str]
    """The modalities that are missing in evaluation (TEST.MISS)."""

    def forward(self, x, label=None, cam_label=None, view_label=None, return_pattern=3, img_path=None):
        """As DeMo's; a loss of the score is added to its last element or, where there are pairs alone, becomes it."""
        missing = frozenset() if self.training else self.slim_missing
        with SlimPass(self, {name: x[name] for name in MODALITIES}, missing) as seen:
            output = super().forward(x, label, cam_label, view_label, return_pattern, img_path)
        if not self.training or seen.loss is None:
            return output
        return (*output[:-1], output[-1] + seen.loss) if len(output) % 2 else (*output, seen.loss)


class SlimBackbone(Patched, nn.Module):
    """The backbone of a slimmed model; alone and in copies of it as it was."""

    suffix = "Slim"

    def forward(self, *arguments, **named):
        seen = _current()
        is_own = seen is not None and self is seen.model.BACKBONE
        return seen.encode(super().forward, *arguments, **named) if is_own else super().forward(*arguments, **named)


class SlimBlock(Patched, nn.Module):
    """A block from the first slimmed one on."""

    suffix = "Slim"

    def forward(self, *arguments, **named):
        seen = _current()
        is_own = seen is not None and any(self is block for block in seen.tower.blocks)
        return seen.run(super().forward, *arguments, **named) if is_own else super().forward(*arguments, **named)


def slim(model: Any, cfg: CfgNode, grid: tuple[int, int]) -> None:
    """Make a model of DeMo, whose patches stand on a `grid` of (rows, columns), run slimming, in place.

    Adds the module `slimming`, which has weights where MODEL.SLIM_SCORE has. Raises `UserError` for settings that do not fit,
    for a score that reads masks or merges by ToMe, and for a backbone with other blocks than DeMo's.
    """
    name = cfg.MODEL.SLIM_SCORE
    entry = score_entry(name, "MODEL.SLIM_SCORE")
    check_stages(cfg.MODEL)
    if entry.masks:
        raise UserError(f"MODEL.SLIM_SCORE is {name!r}, which reads foreground masks, but DeMo's loader has none; choose "
                        "another score, or train with this project's train_net.py.")
    if name == "tome":
        raise UserError("MODEL.SLIM_SCORE is 'tome', which changes the attention inside the blocks, and DeMo's blocks stay as "
                        "they are; choose another score, or train with this project's train_net.py.")
    if cfg.MODEL.get("PROMPT", False):
        raise UserError("MODEL.PROMPT is True, but slimming needs blocks that take and return the image's tokens alone; set it "
                        "to False or leave MODEL.SLIM_BLOCKS empty.")
    tower = Tower(getattr(model.BACKBONE, "base", None), grid)
    model.slimming = Slimming(cfg, tower).train(model.training)  # type: ignore[arg-type]  # has what slimming calls
    model.slimming.to(list(model.BACKBONE.parameters())[-1].device)
    model.slim_grid = grid
    letters = cfg.TEST.MISS if cfg.TEST.MISS in MISSING_CASES else ""
    model.slim_missing = frozenset(name for name in MODALITIES if name[0].lower() in letters)
    for block in tower.blocks[model.slimming.blocks[0]:]:
        make_patched(block, SlimBlock)
    make_patched(model.BACKBONE, SlimBackbone)
    make_patched(model, SlimForward)


def _blocks_of(base: Any) -> tuple[list[Any], bool]:
    """The blocks, and whether their layout is (tokens, batch, width). Raises `UserError`."""
    for place, tokens_first in TOWERS.values():
        found = base
        for part in place.split("."):
            found = getattr(found, part, None)
        if isinstance(found, (nn.Sequential, nn.ModuleList)) and len(found) and hasattr(_as_timms(found[0]), "norm1"):
            return list(found), tokens_first
    wanted = " nor ".join(f"{place} ({name})" for name, (place, _) in TOWERS.items())
    raise UserError(f"BACKBONE.base has neither {wanted}, between which slimming drops patches; leave MODEL.SLIM_BLOCKS empty.")


def _as_timms(block: Any) -> Any:
    """A block of DeMo's as a `Block` of timm's with its norm and its projection to queries and keys, which scores by attention
    read; other blocks as they are."""
    theirs: Any = getattr(block, "attn", None)
    norm: Any = getattr(block, "ln_1", getattr(block, "norm1", None))
    qkv: Any = getattr(theirs, "qkv", None)
    if isinstance(theirs, nn.MultiheadAttention):
        qkv = SimpleNamespace(weight=theirs.in_proj_weight, bias=theirs.in_proj_bias)
    if norm is None or qkv is None or not hasattr(theirs, "num_heads"):
        return block
    view: Any = Block.__new__(Block)
    attention: Any = Attention.__new__(Attention)
    for module in (view, attention):
        nn.Module.__init__(module)
    view.norm1, view.attn = norm, attention
    attention.num_heads, attention.qkv = theirs.num_heads, qkv
    attention.scale = (norm.normalized_shape[0] // theirs.num_heads) ** -0.5
    attention.q_norm = attention.k_norm = nn.Identity()
    return view
