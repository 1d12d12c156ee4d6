"""Slimming of a Vision Transformer, one image and one token at a time (docs/method.md, Slimming; docs/slim.md)."""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import torch

from tests.reference.sdtps import softmax


@dataclass
class Image:
    """Tokens of one image between two blocks, each (C,)."""

    prefix: list  # class token, registers
    patches: dict  # by place on the grid, ascending
    extras: list  # of the stages before

    @property
    def tokens(self):
        return [*self.prefix, *self.patches.values(), *self.extras]

    def with_tokens(self, tokens):
        rest = iter(tokens)
        return Image(
            [next(rest) for _ in self.prefix],
            {place: next(rest) for place in self.patches},
            list(rest),
        )


def run(
    model,
    path,
    forward,
    stages,
    prefix,
    tokens_first=False,
    merge=True,
    nudge=lambda call, row, index, place: 0.0,
):
    """`forward(model)` of a dense model, where slimmed tokens take the place of those after the last block at `path`. `stages`
    {index: (share, score)}, `score(call, row, index, layer, images)` one number for each patch of `images[row]` in the
    `call`-th call of the blocks, before block `index`, which is `layer`. `nudge`s decide where roundings would."""
    blocks, calls = list(model.get_submodule(path)), defaultdict(list)
    swap = (lambda rows: rows.transpose(0, 1)) if tokens_first else (lambda rows: rows)

    def note(block, args, kwargs):
        calls[block].append((args, kwargs))

    def exchange(last, args, output):
        call = len(calls[last]) - 1
        inputs = swap(calls[blocks[0]][call][0][0])
        images = [Image(list(row[:prefix]), dict(enumerate(row[prefix:])), []) for row in inputs]
        for index, block in enumerate(blocks):
            layers = [
                partial(layer, block, *calls[block][call], row, len(images), swap)
                for row in range(len(images))
            ]
            if index in stages:
                share, score = stages[index]
                scores = [score(call, row, index, each, images) for row, each in enumerate(layers)]
                images = [
                    drop_patches(image, scores[row], share, merge, partial(nudge, call, row, index))
                    for row, image in enumerate(images)
                ]
            images = [each(image) for each, image in zip(layers, images, strict=True)]
        for image in images:
            image.extras = []
        rows = swap(torch.stack([torch.stack(image.tokens) for image in images]))
        return (rows, *output[1:]) if isinstance(output, tuple) else rows

    handles = [block.register_forward_pre_hook(note, with_kwargs=True) for block in blocks]
    handles.append(blocks[-1].register_forward_hook(exchange))
    output = forward(model)
    for handle in handles:
        handle.remove()
    return output


def drop_patches(image, scores, share, merge, nudge):
    """The best patches, and the sum of the others with the softmax of their scores as weights."""
    by_place = dict(zip(image.patches, scores, strict=True))
    keep = math.ceil(share * len(by_place) - 1e-6)
    ranked = sorted(
        by_place, key=lambda place: -float(torch.as_tensor(by_place[place]).detach()) - nudge(place)
    )
    best, others = sorted(ranked[:keep]), ranked[keep:]
    extras = list(image.extras)
    if merge and others:
        weights = softmax([by_place[place] for place in others])
        extras.append(
            sum(w * image.patches[place] for w, place in zip(weights, others, strict=True))
        )
    return Image(image.prefix, {place: image.patches[place] for place in best}, extras)


def layer(block, args, kwargs, row, batch, swap, image):
    """A block on the tokens of one image, with the arguments that it had in the dense model cut to these."""
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    places, extras = list(image.patches), len(image.extras)
    if "rope" in kwargs:
        kwargs["rope"] = gather_rope(kwargs["rope"], places, extras)
    if "position_embeddings" in kwargs:  # cosines and sines, which leave an extra token as it is
        pair, still = kwargs["position_embeddings"], (torch.ones_like, torch.zeros_like)
        kwargs["position_embeddings"] = tuple(
            torch.stack([*(rows[place] for place in places), *extras * [of(rows[0])]])
            for rows, of in zip(pair, still, strict=True)
        )
    if "use_mask" in kwargs:
        mask = kwargs["use_mask"][row].flatten()
        kwargs["use_mask"] = torch.stack(
            [*(mask[place] for place in places), *extras * [torch.ones_like(mask[0])]]
        )[None]
    if "attn_mask" in kwargs:
        kwargs["attn_mask"] = gather_mask(kwargs["attn_mask"], row, batch, image)
    output = block.forward(swap(torch.stack(image.tokens)[None]), *args[1:], **kwargs)
    return image.with_tokens(swap(output[0] if isinstance(output, tuple) else output)[0])


def gather_rope(rope, places, extras):
    """Sines and cosines (…, N, 2D) of all patches, for those at places; an extra token is not rotated."""
    still = torch.ones_like(rope[..., 0, :])
    still[..., : rope.shape[-1] // 2] = 0
    return torch.stack([*(rope[..., place, :] for place in places), *extras * [still]], dim=-2)


def gather_mask(mask, row, batch, image):
    """A mask (L, L) or (B or 1, heads or 1, L, L) between all tokens, for these; extra tokens see and are seen."""
    mask = mask if mask.ndim == 2 else mask[row if len(mask) == batch else 0]
    prefix = len(image.prefix)
    index = [
        *range(prefix),
        *(prefix + place for place in image.patches),
        *len(image.extras) * [None],
    ]
    visible = torch.full_like(mask[..., 0, 0], mask.dtype == torch.bool)
    cut = torch.stack(
        [
            torch.stack(
                [visible if None in (query, key) else mask[..., query, key] for key in index],
                dim=-1,
            )
            for query in index
        ],
        dim=-2,
    )
    return cut if mask.ndim == 2 else cut[None]
