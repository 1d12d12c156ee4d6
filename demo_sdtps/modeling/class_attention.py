"""Keys and attention weights in a block of a Vision Transformer, without running the block.

A block is read by the names of its parts, so that no library is imported: timm's VisionTransformer and Eva, OpenAI's CLIP and
open_clip, torchvision, and the Vision Transformers of Hugging Face's transformers that slimming/towers.py knows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.modeling.slimming.tokens import Tokens
from demo_sdtps.runtime.errors import UserError

CLASS_TOKEN = slice(1)
NORMS = ("norm1", "ln_1", "layernorm_before", "layer_norm1")
ATTENTIONS = ("attn", "self_attention", "self_attn", "attention")
PROJECTIONS = (("q_proj", "k_proj"), ("query", "key"))
OTHER_WAYS = ("ResPostBlock", "DiffAttention")
"""A block and an attention of timm whose parts have these names and mean something else."""


@torch.no_grad()
def attention_weights(
    block: nn.Module, tokens: Tokens, queries: slice = slice(None), rope: torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax weights of `queries`, all tokens or CLASS_TOKEN, over all L tokens in `block`, whose input is `tokens`
    → (B, heads, L or 1, L) float32. `rope` is the rotary embedding that the block is given, in timm's form.

    Those of the class token cost the block's keys, about a twelfth of the block.
    """
    query = _project(block, tokens.values[:, queries], is_key=False)
    key = keys(block, tokens.values)
    if rope is not None:
        key = _rotate(key, rope, attention_of(block))
        # The class token has no rotary position.
        query = query if query.shape[2] == 1 else _rotate(query, rope, attention_of(block))
    with torch.autocast(query.device.type, enabled=False):
        logits = (query.float() * query.shape[-1] ** -0.5) @ key.float().transpose(-2, -1)
        if tokens.sizes is not None:
            logits = logits + tokens.sizes.log()[:, None, None, :]
        return logits.softmax(dim=-1)


@torch.no_grad()
def keys(block: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """Keys of tokens (B, L, C), the input of `block`, before a rotary embedding → (B, heads, L, D)."""
    return _project(block, values, is_key=True)


def attention_of(block: nn.Module) -> Any:
    """The attention of a block, None where it is not known."""
    attention: Any = _first(block, ATTENTIONS)
    attention = getattr(attention, "attention", attention)  # of transformers' ViT before version 5
    names = {type(block).__name__, type(attention).__name__}
    if _first(block, NORMS) is None or names & set(OTHER_WAYS) or not _projections(attention):
        return None
    return attention if getattr(attention, "num_kv_groups", 1) == 1 else None


def check_class_attention(
    block: nn.Module, what: str, advice: str = "choose another score or backbone"
) -> None:
    """Refuse a block whose attention is not known here; `what` is first in the sentence and `advice` last."""
    if attention_of(block) is None:
        raise UserError(
            f"{what}, which reads the keys of a block, but the attention of this backbone's blocks "
            f"({type(block).__name__}) is computed in another way; {advice}."
        )


def _project(block: nn.Module, values: torch.Tensor, is_key: bool) -> torch.Tensor:
    """Queries or keys of tokens (B, L, C) → (B, heads, L, D)."""
    attention = attention_of(block)
    # EVA's variant with the norm after the attention.
    normed = values if type(block).__name__ == "EvaBlockPostNorm" else _first(block, NORMS)(values)
    projection = _projections(attention)[is_key]
    heads = F.linear(normed, *projection).unflatten(-1, (_heads(attention), -1)).transpose(1, 2)
    norm = getattr(attention, "k_norm" if is_key else "q_norm", None)
    return heads if norm is None else norm(heads)


def _projections(attention: Any) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Weight and bias of the queries, and of the keys; none where they are not known."""
    for names in PROJECTIONS:
        if all(isinstance(getattr(attention, name, None), nn.Linear) for name in names):
            # Detached: autocast may keep a half-precision copy of a parameter, which without gradient the block must not reuse.
            layers = (getattr(attention, name) for name in names)
            return [(layer.weight.detach(), layer.bias) for layer in layers]
    qkv = getattr(attention, "qkv", None)
    owner, prefix = (attention, "in_proj_") if qkv is None else (qkv, "")
    weight, bias = (getattr(owner, f"{prefix}{leaf}", None) for leaf in ("weight", "bias"))
    if weight is None or _heads(attention) is None:
        return []
    biases = (None, None) if bias is None else bias.chunk(3)[:2]
    if getattr(attention, "q_bias", None) is not None:  # of timm's Eva
        biases = attention.q_bias, attention.k_bias
    return list(zip(weight.chunk(3)[:2], biases, strict=True))


def _heads(attention: Any) -> int:
    return _first(attention, ("num_heads", "num_attention_heads"))


def _first(owner: Any, names: tuple[str, ...]) -> Any:
    """The first of these attributes that `owner` has, None for none."""
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if value is not None), None)


def _rotate(heads: torch.Tensor, rope: torch.Tensor, attention: Any) -> torch.Tensor:
    """Queries or keys (B, heads, L, D) with the rotary embedding of the patches."""
    from timm.layers import apply_rot_embed_cat

    prefix = heads.shape[2] - rope.shape[-2]
    is_half = getattr(
        attention, "rotate_half", type(attention).__module__.startswith("transformers")
    )
    # Older versions of timm have no such argument.
    halves = {"half": True} if is_half else {}
    turned = apply_rot_embed_cat(heads[:, :, prefix:], rope, **halves)
    return torch.cat([heads[:, :, :prefix], turned.to(heads.dtype)], dim=2)
