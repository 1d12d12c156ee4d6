"""Keys and attention weights in a block of timm's VisionTransformer or Eva, without running the block."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention, AttentionRope, apply_rot_embed_cat
from timm.models.eva import EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import Block
from torch import nn

from demo_sdtps.config import UserError
from demo_sdtps.modeling.backbones.base import Backbone, Tokens

CLASS_TOKEN = slice(1)


@torch.no_grad()
def attention_weights(backbone: Backbone, tokens: Tokens, index: int, queries: slice = slice(None)) -> torch.Tensor:
    """Softmax weights of `queries`, all tokens or CLASS_TOKEN, over all L tokens in block `index`, whose input is `tokens`
    → (B, heads, L or 1, L) float32.

    Those of the class token cost the block's keys, about a twelfth of the block.
    """
    attention: Any = backbone.vit.blocks[index].attn
    query, key = _projected(backbone, tokens.values[:, queries], index, is_key=False), keys(backbone, tokens, index)
    rope = backbone.block_arguments(tokens)(index).get("rope")
    if rope is not None:
        key = _rotate(key, rope, attention)
        query = query if query.shape[2] == 1 else _rotate(query, rope, attention)  # the class token has no rotary position
    with torch.autocast(query.device.type, enabled=False):
        logits = (query.float() * attention.scale) @ key.float().transpose(-2, -1)
        if tokens.sizes is not None:
            logits = logits + tokens.sizes.log()[:, None, None, :]
        return logits.softmax(dim=-1)


def _rotate(heads: torch.Tensor, rope: torch.Tensor, attention: Any) -> torch.Tensor:
    """Queries or keys (B, heads, L, D) with the rotary embedding of the patches."""
    prefix = attention.num_prefix_tokens
    turned = apply_rot_embed_cat(heads[:, :, prefix:], rope, half=getattr(attention, "rotate_half", False))
    return torch.cat([heads[:, :, :prefix], turned.to(heads.dtype)], dim=2)


def check_class_attention(block: nn.Module, what: str, advice: str = "choose another score or backbone") -> None:
    """Raise `UserError`, `what` first in the sentence and `advice` last, for a block whose attention is not known here."""
    attention = getattr(block, "attn", None)
    is_known = isinstance(block, (Block, EvaBlock, EvaBlockPostNorm)) \
        and isinstance(attention, (Attention, AttentionRope, EvaAttention))
    if not is_known or getattr(attention, "num_kv_groups", 1) != 1:
        raise UserError(f"{what}, which reads the keys of a block, but the attention of this backbone's blocks "
                        f"({type(block).__name__}) is computed in another way; {advice}.")


@torch.no_grad()
def keys(backbone: Backbone, tokens: Tokens, index: int) -> torch.Tensor:
    """Keys of all L tokens in block `index`, whose input is `tokens`, before a rotary embedding → (B, heads, L, D)."""
    return _projected(backbone, tokens.values, index, is_key=True)


def _projected(backbone: Backbone, values: torch.Tensor, index: int, is_key: bool) -> torch.Tensor:
    """Queries or keys of tokens (B, L, C) → (B, heads, L, D)."""
    block: Any = backbone.vit.blocks[index]
    attention = block.attn
    seen = values if isinstance(block, EvaBlockPostNorm) else block.norm1(values)
    heads = F.linear(seen, *_projections(attention)[is_key]).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    return (attention.k_norm if is_key else attention.q_norm)(heads)


def _projections(attention: Any) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Weight and bias of the queries, and of the keys."""
    if getattr(attention, "qkv", None) is None:
        # Detached: autocast may keep a half-precision copy of a parameter, which without gradient the block must not reuse.
        return [(layer.weight.detach(), layer.bias) for layer in (attention.q_proj, attention.k_proj)]
    weights = attention.qkv.weight.chunk(3)[:2]
    if getattr(attention, "q_bias", None) is not None:
        return list(zip(weights, (attention.q_bias, attention.k_bias), strict=True))
    biases = (None, None) if attention.qkv.bias is None else attention.qkv.bias.chunk(3)[:2]
    return list(zip(weights, biases, strict=True))
