"""Attention of the class token in a block of timm's VisionTransformer or Eva, without running the block."""
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


@torch.no_grad()
def class_attention(backbone: Backbone, tokens: Tokens, index: int) -> torch.Tensor:
    """Softmax weights of the class token over all L tokens in block `index`, whose input is `tokens` → (B, heads, L) float32.

    Costs the block's keys, about a twelfth of the block.
    """
    block: Any = backbone.vit.blocks[index]
    attention, values = block.attn, tokens.values
    seen = values if isinstance(block, EvaBlockPostNorm) else block.norm1(values)
    (query_weight, query_bias), (key_weight, key_bias) = _projections(attention)
    query = F.linear(seen[:, :1], query_weight, query_bias).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    key = F.linear(seen, key_weight, key_bias).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    query, key = attention.q_norm(query), attention.k_norm(key)
    rope = backbone.block_arguments(tokens)(index).get("rope")
    if rope is not None:
        prefix = attention.num_prefix_tokens
        turned = apply_rot_embed_cat(key[:, :, prefix:], rope, half=getattr(attention, "rotate_half", False))
        key = torch.cat([key[:, :, :prefix], turned.to(key.dtype)], dim=2)
    with torch.autocast(values.device.type, enabled=False):
        logits = (query.float() * attention.scale) @ key.float().transpose(-2, -1)
        if tokens.sizes is not None:
            logits = logits + tokens.sizes.log()[:, None, None, :]
        return logits.softmax(dim=-1).squeeze(2)


def check_class_attention(block: nn.Module, what: str) -> None:
    """Raise `UserError`, `what` first in the sentence, for a block whose attention `class_attention` does not know."""
    attention = getattr(block, "attn", None)
    is_known = isinstance(block, (Block, EvaBlock, EvaBlockPostNorm)) \
        and isinstance(attention, (Attention, AttentionRope, EvaAttention))
    if not is_known or getattr(attention, "num_kv_groups", 1) != 1:
        raise UserError(f"{what}, which reads the class token's attention, but that of this backbone's blocks "
                        f"({type(block).__name__}) is computed in another way; choose another score or backbone.")


def _projections(attention: Any) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Weight and bias of the queries and of the keys."""
    if getattr(attention, "qkv", None) is None:
        # Detached: autocast may keep a half-precision copy of a parameter, which without gradient the block must not reuse.
        return [(layer.weight.detach(), layer.bias) for layer in (attention.q_proj, attention.k_proj)]
    weights = attention.qkv.weight.chunk(3)[:2]
    if getattr(attention, "q_bias", None) is not None:
        return list(zip(weights, (attention.q_bias, attention.k_bias), strict=True))
    biases = (None, None) if attention.qkv.bias is None else attention.qkv.bias.chunk(3)[:2]
    return list(zip(weights, biases, strict=True))
