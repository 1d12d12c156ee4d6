"""Attention rollout and Grad-CAM by loops over triplets, blocks, heads and tokens; for timm's VisionTransformer alone."""

import torch

from demo_sdtps.config import MODALITIES


def head_attention(block, tokens, sizes):
    """Attention matrices (L, L) of a block's heads, for the tokens (L, C) of one image; `sizes` (L,) weigh the keys."""
    attention, result = block.attn, []
    normed, width = block.norm1(tokens), tokens.shape[1]
    depth = width // attention.num_heads
    for head in range(attention.num_heads):
        rows = slice(head * depth, (head + 1) * depth)
        query = normed @ attention.qkv.weight[:width][rows].T + attention.qkv.bias[:width][rows]
        key = (
            normed @ attention.qkv.weight[width : 2 * width][rows].T
            + attention.qkv.bias[width : 2 * width][rows]
        )
        matrix = torch.zeros(len(tokens), len(tokens), dtype=tokens.dtype)
        for row in range(len(tokens)):
            weights = torch.exp((key @ query[row]) / depth**0.5) * sizes
            matrix[row] = weights / weights.sum()
        result.append(matrix)
    return result


def rollout(model, steps, patches):
    """Map (patches,) of one image; `steps` are the inputs of its blocks: (tokens (L, C), places of its patches, sizes)."""
    prefix = model.backbone.vit.num_prefix_tokens
    product, before = None, None
    for block, (tokens, places, sizes) in zip(model.backbone.vit.blocks, steps, strict=True):
        count = len(tokens)
        if product is None:
            product, origin = torch.eye(count, dtype=tokens.dtype), places
        elif places != before:
            rows = [product[index] for index in range(prefix)]
            rows += [product[prefix + before.index(place)] for place in places]
            rows += list(product[prefix + len(before) :])
            rows += [product.new_zeros(product.shape[1])] * (count - len(rows))
            product = torch.stack(rows)
        average = sum(head_attention(block, tokens, sizes)) / block.attn.num_heads
        product = (0.5 * average + 0.5 * torch.eye(count, dtype=tokens.dtype)) @ product
        before = places
    result = product.new_zeros(patches)
    for index, place in enumerate(origin):
        result[place] = product[0, prefix + index] if place in before else 0.0
    return result


def grad_cam(tokens, gradient, places, prefix, patches):
    """Map (patches,) of one image from the tokens (L, C) that enter its last block and the gradient of the target there."""
    width, result = tokens.shape[1], tokens.new_zeros(patches)
    tokens, gradient = tokens.tolist(), gradient.tolist()
    alpha = [
        sum(gradient[prefix + index][channel] for index in range(len(places))) / len(places)
        for channel in range(width)
    ]
    for index, place in enumerate(places):
        result[place] = max(
            0.0, sum(alpha[channel] * tokens[prefix + index][channel] for channel in range(width))
        )
    return result


def one_by_one(images, cameras):
    """The triplets of a batch, each as a batch of one."""
    return [
        ({name: images[name][index : index + 1] for name in MODALITIES}, cameras[index : index + 1])
        for index in range(len(cameras))
    ]
