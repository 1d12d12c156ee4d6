"""ToMe and EViT in a block of timm, an image, a head and a token at a time, as in their papers (studies/baselines.py)."""

from math import ceil

import torch


def attend(block, values, sizes):
    """Tokens (L, C) for `sizes` patches → after the attention (L, C), and by head keys (L, D) and weights (L, L)."""
    attention, normed = block.attn, block.norm1(values)
    heads, width = attention.num_heads, values.shape[1] // attention.num_heads
    queries, keys, contents = attention.qkv(normed).chunk(3, dim=1)
    outputs, all_keys, all_weights = [], [], []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        key = keys[:, part]
        rows = []
        for query in queries[:, part]:
            powers = torch.stack(
                [
                    size * torch.exp(query @ other / width**0.5)
                    for size, other in zip(sizes, key, strict=True)
                ]
            )
            rows.append(powers / powers.sum())
        weights = torch.stack(rows)
        outputs.append(weights @ contents[:, part])
        all_keys.append(key)
        all_weights.append(weights)
    return values + attention.proj(torch.cat(outputs, dim=1)), all_keys, all_weights


def mlp(block, values):
    return values + block.mlp(block.norm2(values))


def tome(block, values, sizes, count, prefix):
    """A block that merges `count` tokens (L, C), of which `prefix` are protected → tokens after the block and their sizes."""
    values, keys, _ = attend(block, values, sizes)
    metric = (sum(keys) / len(keys)).detach()
    every = range(len(values))
    likeness = {
        one: {
            other: float(metric[one] @ metric[other] / (metric[one].norm() * metric[other].norm()))
            for other in every[1::2]
            if other >= prefix
        }
        for one in every[::2]
        if one >= prefix
    }
    partner = {one: max(others, key=others.get) for one, others in likeness.items()}
    sources = sorted(partner, key=lambda one: -likeness[one][partner[one]])[:count]
    protected = [place for place in every if place < prefix]
    rest = [place for place in (*every[::2], *every[1::2]) if place not in (*protected, *sources)]
    tokens, totals = [], []
    for place in protected + rest:
        group = [place] + [one for one in sources if partner[one] == place]
        total = sum(float(sizes[one]) for one in group)
        tokens.append(sum(float(sizes[one]) * values[one] for one in group) / total)
        totals.append(total)
    return mlp(block, torch.stack(tokens)), torch.tensor(totals).double()


def evit(block, values, rate):
    """A block that keeps a share of the tokens (L, C) after the class token → tokens after the block."""
    values, _, weights = attend(block, values, [1.0] * len(values))
    attention = sum(head[0] for head in weights) / len(weights)
    places = sorted(range(1, len(values)), key=lambda place: -attention[place].item())
    count = ceil(rate * len(places))
    if count == len(places):
        return mlp(block, values)
    fused = sum(attention[place] * values[place] for place in places[count:])
    return mlp(block, torch.stack([values[0], *(values[place] for place in places[:count]), fused]))
