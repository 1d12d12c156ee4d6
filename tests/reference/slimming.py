"""Slimming, one image at a time with plain softmax attention (docs/method.md, Slimming)."""

import math
from dataclasses import dataclass
from functools import partial

import torch


@dataclass
class Image:
    """Tokens of one image between two blocks, each (C,)."""

    prefix: list  # class token, registers
    patches: dict  # by place on the grid, ascending
    extras: list  # of the stages before

    @property
    def tokens(self):
        return [*self.prefix, *self.patches.values(), *self.extras]


def slimmed(
    backbone,
    inputs,
    blocks,
    shares,
    score,
    shared,
    merge,
    missing=(),
    nudge=lambda stage, modality, place: 0.0,
    weigh=None,
):
    """One triplet {modality: tokens (P + N, C) before the first block} → images {modality: Image} after the last block's norm
    and projection, and by stage {modality: kept places}. `score(stage, modality, images)` → one number per patch.
    `nudge`s are added where the best are chosen: they decide between scores that are equal but for roundings."""
    vit, kept = backbone.vit, []
    prefix = vit.num_prefix_tokens
    images = {
        modality: Image(list(tokens[:prefix]), dict(enumerate(tokens[prefix:])), [])
        for modality, tokens in inputs.items()
    }
    for index in range(len(vit.blocks)):
        if index in blocks:
            stage = blocks.index(index)
            scores = {
                modality: dict(zip(image.patches, score(stage, modality, images), strict=True))
                for modality, image in images.items()
            }
            if shared:
                present = [modality for modality in images if modality not in missing]
                total = {
                    place: sum(scores[modality][place] for modality in present)
                    for place in scores[present[0]]
                }
                scores = dict.fromkeys(images, total)
            images = {
                modality: dropped(
                    image,
                    scores[modality],
                    shares[stage],
                    merge,
                    partial(nudge, stage, modality),
                    weigh or softmax,
                )
                for modality, image in images.items()
            }
            kept.append({modality: list(image.patches) for modality, image in images.items()})
        images = {modality: run_block(vit, index, image) for modality, image in images.items()}
    return {modality: finished(backbone, image) for modality, image in images.items()}, kept


def softmax(scores):
    """The softmax of a list of scores."""
    most = max(float(torch.as_tensor(score).detach()) for score in scores)
    weights = [torch.exp(torch.as_tensor(score - most)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def dropped(image, scores, share, merge, nudge, weigh=softmax):
    """The best patches, and the sum of the others with the weights that `weigh` makes of their scores."""
    keep = math.ceil(share * len(image.patches) - 1e-6)
    values = {
        place: float(torch.as_tensor(score).detach()) + nudge(place)
        for place, score in scores.items()
    }
    ranked = sorted(image.patches, key=lambda place: -values[place])
    best, others = sorted(ranked[:keep]), ranked[keep:]
    extras = list(image.extras)
    if merge and others:
        weights = weigh([scores[place] for place in others])
        extras.append(
            sum(
                weight * image.patches[place] for weight, place in zip(weights, others, strict=True)
            )
        )
    return Image(image.prefix, {place: image.patches[place] for place in best}, extras)


def run_block(vit, index, image):
    block = vit.blocks[index]
    rotations = rotations_of(vit, index, image)
    scale1, scale2 = (scale_of(block, number) for number in (1, 2))
    _, attended = attention(block.attn, [block.norm1(token) for token in image.tokens], rotations)
    tokens = [token + scale1(seen) for token, seen in zip(image.tokens, attended, strict=True)]
    return like(image, [token + scale2(block.mlp(block.norm2(token))) for token in tokens])


def attention(layer, tokens, rotations):
    """timm's attention `layer` over one image's tokens: weights (heads, L, L), and the result of each token.

    `rotations`: for every token sines and cosines of every head, (heads, 2D), or None where it is not rotated.
    """
    rows = torch.stack(tokens)
    if layer.qkv is None:
        query, key, value = layer.q_proj(rows), layer.k_proj(rows), layer.v_proj(rows)
    else:
        query, key, value = layer.qkv(rows).chunk(3, dim=-1)
        if getattr(layer, "q_bias", None) is not None:
            query, value = query + layer.q_bias, value + layer.v_bias
    width, results, weights = query.shape[1] // layer.num_heads, [], []
    for head in range(layer.num_heads):
        own = slice(head * width, (head + 1) * width)
        half = getattr(layer, "rotate_half", False)
        queries, keys = (
            torch.stack(
                [
                    turned(norm(token[own]), rotation, head, half)
                    for token, rotation in zip(part, rotations, strict=True)
                ]
            )
            for part, norm in ((query, layer.q_norm), (key, layer.k_norm))
        )
        weights.append((queries @ keys.T / width**0.5).softmax(dim=-1))
        results.append(weights[-1] @ value[:, own])
    return torch.stack(weights), list(layer.proj(layer.norm(torch.cat(results, dim=1))))


def turned(token, rotation, head, half):
    """Each pair of channels (a, b) → (a cos - b sin, b cos + a sin); pairs are neighbours, or `half` the channels apart."""
    if rotation is None:
        return token
    width, sines_cosines = len(token), rotation[head]
    channels = torch.arange(width)
    is_first, step = (channels < width // 2, width // 2) if half else (channels % 2 == 0, 1)
    partner = torch.where(is_first, -token[(channels + step) % width], token[channels - step])
    return token * sines_cosines[width:] + partner * sines_cosines[:width]


def rotations_of(vit, index, image):
    """Sines and cosines of each token's place, for every head; None for prefix and extra tokens."""
    patches = [None] * len(image.patches)
    if getattr(vit, "rope", None) is not None:
        grid = vit.rope.get_embed()
        grid = (
            grid[index] if vit.rope_mixed else grid.expand(vit.blocks[index].attn.num_heads, -1, -1)
        )
        patches = [grid[:, place] for place in image.patches]
    return [*[None] * len(image.prefix), *patches, *[None] * len(image.extras)]


def scale_of(block, number):
    """The block's layer scale after attention (1) or MLP (2)."""
    if hasattr(block, "ls1"):
        return getattr(block, f"ls{number}")
    gamma = getattr(block, f"gamma_{number}")
    return lambda token: token if gamma is None else gamma * token


def like(image, tokens):
    first, last = len(image.prefix), len(image.prefix) + len(image.patches)
    return Image(
        tokens[:first], dict(zip(image.patches, tokens[first:last], strict=True)), tokens[last:]
    )


def finished(backbone, image):
    return like(image, [backbone.vit.head(backbone.vit.norm(token)) for token in image.tokens])
