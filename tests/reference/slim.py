"""Slimming of any Vision Transformer, one image and one token at a time (docs/slim.md)."""

from collections import defaultdict
from functools import partial

import torch

from tests.reference.slimming import Image, dropped, like


def slimmed(layers, tokens, prefix, suffix, stages, merge, restore, nudge):
    """Tokens (L, C) of one image before the first block → after the last. `layers[i](rows, image)` is block i on (1, L, C);
    `stages` {index: (share, score)}, `score(image)` one number for each patch; `nudge(index, place)` is added where the best
    are chosen."""
    stop = len(tokens) - suffix
    image, end = (
        Image(list(tokens[:prefix]), dict(enumerate(tokens[prefix:stop])), []),
        list(tokens[stop:]),
    )
    grid = {}
    for index, layer in enumerate(layers):
        if index in stages:
            share, score = stages[index]
            grid |= image.patches
            scores = dict(zip(image.patches, score(image), strict=True))
            image = dropped(image, scores, share, merge, partial(nudge, index))
        rows = list(layer(torch.stack([*image.tokens, *end])[None], image)[0])
        stop = len(rows) - suffix
        image, end = like(image, rows[:stop]), rows[stop:]
    return torch.stack(
        [*image.prefix, *((grid | image.patches) if restore else image.patches).values(), *end]
    )


def run(
    model,
    path,
    forward,
    stages,
    prefix,
    suffix=0,
    tokens_first=False,
    merge=True,
    restore=False,
    nudge=None,
):
    """`forward(model)` of a dense model, where `slimmed` tokens take the place of those behind the last block at `path`.

    `stages` {index: (share, score)}, `score(call, row, index, layer, image)` one number for each patch of image `row` in the
    `call`-th call of the blocks, before block `index`, which is `layer`; so is `nudge(call, row, index, place)`.
    """
    blocks, seen = list(model.get_submodule(path)), defaultdict(list)
    swap = (lambda rows: rows.transpose(0, 1)) if tokens_first else (lambda rows: rows)

    def note(block, args, kwargs):
        seen[block].append((args, kwargs))

    def exchange(last, args, output):
        call = len(seen[last]) - 1
        inputs = swap(seen[blocks[0]][call][0][0])
        outputs = []
        for row, tokens in enumerate(inputs):
            layers = [
                partial(layer, block, *seen[block][call], row, len(inputs), prefix, suffix, swap)
                for block in blocks
            ]
            own = {
                index: (share, partial(score, call, row, index, layers[index]))
                for index, (share, score) in stages.items()
            }
            bump = partial(nudge, call, row) if nudge else lambda index, place: 0.0
            outputs.append(slimmed(layers, tokens, prefix, suffix, own, merge, restore, bump))
        rows = swap(torch.stack(outputs))
        return (rows, *output[1:]) if isinstance(output, tuple) else rows

    handles = [block.register_forward_pre_hook(note, with_kwargs=True) for block in blocks]
    handles.append(blocks[-1].register_forward_hook(exchange))
    output = forward(model)
    for handle in handles:
        handle.remove()
    return output


def layer(block, args, kwargs, row, batch, prefix, suffix, swap, rows, image):
    """A block on the tokens (1, L, C) of one image, with the arguments that it had in the dense model cut to these."""
    kwargs = dict(kwargs)
    places, extras = list(image.patches), len(image.extras)
    if kwargs.get("rope") is not None:
        kwargs["rope"] = rope_of(kwargs["rope"], places, extras)
    if kwargs.get("use_mask") is not None:
        mask = kwargs["use_mask"][row].flatten()
        kwargs["use_mask"] = torch.stack(
            [*(mask[place] for place in places), *extras * [torch.ones_like(mask[0])]]
        )[None]
    if kwargs.get("attn_mask") is not None:
        kwargs["attn_mask"] = mask_of(
            kwargs["attn_mask"], row, batch, prefix, places, extras, suffix
        )
    output = block.forward(swap(rows), *args[1:], **kwargs)
    return swap(output[0] if isinstance(output, tuple) else output)


def rope_of(rope, places, extras):
    """Sines and cosines (…, N, 2D) of all patches, for those at places; an extra token is not rotated."""
    still = torch.ones_like(rope[..., 0, :])
    still[..., : rope.shape[-1] // 2] = 0
    return torch.stack([*(rope[..., place, :] for place in places), *extras * [still]], dim=-2)


def mask_of(mask, row, batch, prefix, places, extras, suffix):
    """A mask (L, L) or (B or 1, heads or 1, L, L) between all tokens, for these; extra tokens see and are seen."""
    mask = mask if mask.ndim == 2 else mask[row if len(mask) == batch else 0]
    length = mask.shape[-1]
    index = [
        *range(prefix),
        *(prefix + place for place in places),
        *extras * [None],
        *range(length - suffix, length),
    ]
    seen = torch.full_like(mask[..., 0, 0], mask.dtype == torch.bool)
    cut = torch.stack(
        [
            torch.stack(
                [seen if None in (query, key) else mask[..., query, key] for key in index], dim=-1
            )
            for query in index
        ],
        dim=-2,
    )
    return cut if mask.ndim == 2 else cut[None]
