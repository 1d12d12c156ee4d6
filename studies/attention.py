"""Attention weights and keys of a block of timm's VisionTransformer or Eva, by which some of the rivals choose tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat
from torch import nn

from demo_sdtps.runtime.errors import UserError

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
