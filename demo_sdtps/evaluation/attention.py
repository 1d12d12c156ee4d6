"""What the model looks at: attention rollout, Grad-CAM, HDM's weights and ATMoE's gates (docs/method.md)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from torch import nn

from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.backbones.base import Backbone
from demo_sdtps.modeling.inference import check_finite
from demo_sdtps.modeling.modalities import ByModality, Grid, split_rows
from demo_sdtps.runtime.errors import UserError
from vit_slim.scores.base import Context
from vit_slim.state import State

CLASS_TOKEN = slice(1)
OTHER_WAYS = {"ResPostBlock", "DiffAttention"}
"""A block and an attention of timm whose parts have the usual names and mean something else."""


@torch.no_grad()
def attention_weights(
    block: Any,
    values: torch.Tensor,
    queries: slice = slice(None),
    rope: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax weights of `queries`, all tokens or CLASS_TOKEN, over all L tokens in `block`, whose input is `values` (B, L, C)
    → (B, heads, L or 1, L) float32. `rope` is the rotary embedding that the block is given, `bias` is added to the logits.
    Those of the class token cost the block's keys, about a twelfth of the block."""
    query, key = _project(block, values[:, queries], is_key=False), keys(block, values)
    if rope is not None:
        key = _rotate(key, rope, block.attn)
        # The class token has no rotary position.
        query = query if query.shape[2] == 1 else _rotate(query, rope, block.attn)
    with torch.autocast(query.device.type, enabled=False):
        logits = (query.float() * query.shape[-1] ** -0.5) @ key.float().transpose(-2, -1)
        return (logits if bias is None else logits + bias.float()).softmax(dim=-1)


@torch.no_grad()
def keys(block: Any, values: torch.Tensor) -> torch.Tensor:
    """Keys of tokens (B, L, C), the input of `block`, before a rotary embedding → (B, heads, L, D)."""
    return _project(block, values, is_key=True)


def check_attention(block: nn.Module, what: str, advice: str) -> None:
    """Refuse a block whose attention is not known here; `what` is first in the sentence and `advice` last."""
    attention: Any = getattr(block, "attn", None)
    is_known = hasattr(block, "norm1") and (_is_apart(attention) or hasattr(attention, "qkv"))
    if not is_known or OTHER_WAYS & {type(block).__name__, type(attention).__name__}:
        raise UserError(
            f"{what}, which reads the keys of a block, but the attention of this backbone's blocks "
            f"({type(block).__name__}) is computed in another way; {advice}."
        )


def _is_apart(attention: Any) -> bool:
    """Whether queries and keys have a layer each."""
    return isinstance(getattr(attention, "q_proj", None), nn.Linear)


def _project(block: Any, values: torch.Tensor, is_key: bool) -> torch.Tensor:
    """Queries or keys of tokens (B, L, C) → (B, heads, L, D)."""
    attention, letter = block.attn, "k" if is_key else "q"
    # EVA's variant with the norm after the attention.
    normed = values if type(block).__name__ == "EvaBlockPostNorm" else block.norm1(values)
    if _is_apart(attention):
        layer = getattr(attention, f"{letter}_proj")
        # Detached: autocast may keep a half-precision copy of a parameter, which without gradient the block must not reuse.
        weight, bias = layer.weight.detach(), layer.bias
    else:
        weight, bias = attention.qkv.weight.chunk(3)[is_key], attention.qkv.bias
        bias = bias if bias is None else bias.chunk(3)[is_key]
        if getattr(attention, "q_bias", None) is not None:  # Eva's
            bias = getattr(attention, f"{letter}_bias")
    heads = F.linear(normed, weight, bias).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    norm = getattr(attention, f"{letter}_norm", None)
    return heads if norm is None else norm(heads)


def _rotate(heads: torch.Tensor, rope: torch.Tensor, attention: Any) -> torch.Tensor:
    """Queries or keys (B, heads, L, D) with the rotary embedding of the patches."""
    prefix = heads.shape[2] - rope.shape[-2]
    # Older versions of timm have no such argument.
    halves = {"half": True} if getattr(attention, "rotate_half", False) else {}
    turned = apply_rot_embed_cat(heads[:, :, prefix:], rope, **halves)
    return torch.cat([heads[:, :, :prefix], turned.to(heads.dtype)], dim=2)


class Maps(NamedTuple):
    """Values (B, rows, columns) of the patches of each image, 0 or greater, and which patches are left at the end of the
    backbone, (B, rows, columns) bool. By modality."""

    values: ByModality
    kept: ByModality


class FusionWeights(NamedTuple):
    """Weights of B triplets in HDM and ATMoE; None for a model without them."""

    # (B,) by subset and modality: mean over the heads of a subset's attention; sum 1
    hdm: Mapping[str, ByModality] | None
    gates: torch.Tensor | None  # (B, heads, 7): each head's weights of HDM's features; sum 1


class BlockInput(NamedTuple):
    """The input of a block: tokens (B, L, C), and where slimming is on what it knows of them."""

    values: torch.Tensor
    state: State | None


@contextmanager
def record_blocks(backbone: Backbone) -> Iterator[list[BlockInput]]:
    """Context manager: the list holds the input of every block that has run, in order; for a pass of one part
    (`Backbone.chunks`)."""
    outputs: list[BlockInput] = []
    run = backbone.run_blocks

    def one_by_one(
        values: torch.Tensor, state: State | None, start: int, stop: int
    ) -> torch.Tensor:
        for index in range(start, stop):
            outputs.append(BlockInput(values, state))
            values = run(values, state, index, index + 1)
        return values

    vars(backbone)["run_blocks"] = one_by_one  # hides the method of the class
    try:
        yield outputs
    finally:
        del vars(backbone)["run_blocks"]


def rollout(
    model: DeMo, images: ByModality, cameras: torch.Tensor, missing: frozenset[str] = frozenset()
) -> Maps:
    """Attention rollout (Abnar & Zuidema, Quantifying Attention Flow in Transformers, ACL 2020) of images {modality:
    (B, 3, H, W)} and cameras (B,) from the class token to the patches.

    With A_l the attention of block l, averaged over its heads, the rollout is the product of (A_l + I) / 2 over all blocks,
    the last on the left; its row of the class token is the map. Slimming takes the rows of the patches that it drops out of
    the product, an extra token begins with a row of zeros, and dropped patches have the value 0. `missing` modalities are
    images of zeros.
    """
    backbone = model.backbone
    for block in backbone.vit.blocks:
        check_attention(block, "The method is rollout", "choose gradcam")
    context, outputs = _encode(model, images, cameras, missing)
    prefix, first = backbone.vit.num_prefix_tokens, outputs[0]
    arguments = backbone.block_arguments()
    rows, length = first.values.shape[:2]
    product = torch.eye(length, device=first.values.device).repeat(rows, 1, 1)
    for index, tokens in enumerate(outputs):
        product = _carry_rows(product, outputs[max(0, index - 1)], tokens, backbone)
        more = arguments[index]
        if tokens.state:
            more = tokens.state.arguments(tokens.values, more)
        block, bias = backbone.vit.blocks[index], more.get("attn_mask")
        attention = attention_weights(block, tokens.values, rope=more.get("rope"), bias=bias)
        attention = attention.mean(dim=1)
        product = (attention @ product + product) / 2
    positions = _places(first, backbone.grid_size)
    values = product[:, 0, prefix : prefix + positions.shape[1]]
    return _on_grid(values, positions, outputs[-1], context)


def grad_cam(
    model: DeMo,
    images: ByModality,
    cameras: torch.Tensor,
    target: Callable[[Context], torch.Tensor],
    missing: frozenset[str] = frozenset(),
) -> Maps:
    """Grad-CAM (Selvaraju et al., ICCV 2017) at the patch tokens that enter the last block, towards `target`. `target` is a
    function of the encoded triplets with a number (B,) for each. With x_i the token of patch i and g_i the gradient of the
    target there, the map is ReLU(x_i · α), where α is the mean of g_i over the patches of the image; patches that slimming has
    dropped have the value 0. Other arguments and errors are those of `rollout`."""
    backbone = model.backbone
    context, outputs = _encode(model, images, cameras, missing)
    last, prefix = outputs[-1], backbone.vit.num_prefix_tokens
    gradient = torch.autograd.grad(target(context).sum(), last.values)[0]
    positions = _places(last, backbone.grid_size)
    patches = slice(prefix, prefix + positions.shape[1])
    weights = gradient[:, patches].mean(dim=1, keepdim=True)
    relevance = (last.values[:, patches] * weights).sum(dim=-1).relu()
    return _on_grid(relevance.detach(), positions, last, context)


def similarity_to(
    model: DeMo, features: torch.Tensor, pattern: int, neck: str
) -> Callable[[Context], torch.Tensor]:
    """A target of `grad_cam`: the cosine of each triplet's feature of a return pattern with that of `features` (B, D)."""
    return lambda context: F.cosine_similarity(
        model.return_patterns(context, neck)[pattern], features
    )


@torch.no_grad()
def fusion_weights(model: DeMo, context: Context) -> FusionWeights:
    """The weights by which HDM and ATMoE fuse encoded triplets."""
    if model.hdm is None:
        return FusionWeights(None, None)
    patches, _ = model.fusion_tokens(context)
    weights = model.hdm.weights(patches, context.global_feats)
    # The mean of the heads, the sum over the tokens: (B, 7) by modality.
    means = dict(zip(model.modalities, weights.mean(dim=-1).sum(dim=1).unbind(1), strict=True))
    shares = {
        subset: {name: means[name][:, place] for name in names}
        for place, (subset, names) in enumerate(model.hdm.subsets.items())
    }
    gates = model.atmoe.gates(model.hdm(patches, context.global_feats)) if model.atmoe else None
    return FusionWeights(shares, gates)


def _encode(
    model: DeMo, images: ByModality, cameras: torch.Tensor, missing: frozenset[str]
) -> tuple[Context, list[BlockInput]]:
    """Encoded triplets with their gradients, and the input of every block."""
    inputs = {
        name: torch.zeros_like(image) if name in missing else image
        for name, image in images.items()
    }
    for name in model.modalities:
        # A frozen backbone has gradients by the images; with gradients the batch is not parted.
        inputs[name] = inputs[name].detach().requires_grad_()
    with record_blocks(model.backbone) as outputs, torch.enable_grad():
        context = model.forward_features(inputs, cameras).context
    check_finite("The tokens of the images", context.tokens.values())
    return context, outputs


def _carry_rows(
    product: torch.Tensor, before: BlockInput, after: BlockInput, backbone: Backbone
) -> torch.Tensor:
    """The rows of `product` (B, L, L_0), which belong to the tokens `before`, for those `after` a stage of slimming."""
    old, new = (_places(tokens, backbone.grid_size) for tokens in (before, after))
    if old.shape == new.shape:
        return product
    prefix = backbone.vit.num_prefix_tokens
    rows = torch.searchsorted(old.contiguous(), new) + prefix  # positions ascend
    kept = product.gather(1, rows.unsqueeze(-1).expand(-1, -1, product.shape[2]))
    added = after.values.shape[1] - (before.values.shape[1] - old.shape[1] + new.shape[1])
    extra = product.new_zeros(product.shape[0], added, product.shape[2])
    return torch.cat([product[:, :prefix], kept, product[:, prefix + old.shape[1] :], extra], dim=1)


def _places(tokens: BlockInput, grid: Grid) -> torch.Tensor:
    """(B, n) int64: index on the grid of each patch."""
    return (tokens.state or State(grid)).places(tokens.values)


def _on_grid(
    values: torch.Tensor, positions: torch.Tensor, last: BlockInput, context: Context
) -> Maps:
    """Values (M·B, n) of the patches at `positions`, by modality on the grid, 0 where the `last` tokens have no patch."""
    patches = prod(context.grid)
    zeros = values.new_zeros(len(values), patches)
    kept = zeros.scatter(1, _places(last, context.grid), 1.0)
    whole = zeros.scatter(1, positions, values) * kept
    grids = (each.unflatten(1, context.grid).cpu() for each in (whole, kept > 0))
    return Maps(*(split_rows(grid, list(context.tokens)) for grid in grids))
