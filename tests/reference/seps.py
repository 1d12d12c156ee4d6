"""SEPS one caption, image, word and token at a time (docs/seps.md, Formulas)."""

import math

import torch

from tests.reference import sdtps


def similarities(
    weights,
    images,
    captions,
    lengths,
    long_captions=None,
    long_lengths=None,
    *,
    paper,
    dual,
    sparse_ratio,
    aggr_ratio,
    beta=0.25,
    top_k=5,
    tau=None,
    noises=None,
):
    """Similarities (B_v, B_t) and masks: one tensor (B_t, B_v, N) in the open version, a tuple of them in the paper's.

    weights: the state dict; images (B_v, N or N + 1, C) with N a square; captions (B_t, L, C), long_captions (B_t, L', C) and
    how many of their words count. `noises` is the Gumbel noise of a training forward, (B_t, B_v, N) for each branch.
    """
    grid = math.isqrt(images.shape[1])
    classes = int(grid * grid != images.shape[1])
    rows, masks = [], []
    for image_place, image in enumerate(images):
        patches = image[classes:]
        rows.append([])
        for place, (caption, length) in enumerate(zip(captions, lengths, strict=True)):
            texts = [caption[:length]]
            # which get no gradient in the original, though the open version matches them
            if long_captions is not None:
                texts.append(long_captions[place, : long_lengths[place]].detach())
            chosen = []
            for branch, scores in enumerate(_scores(weights, patches, texts, beta, paper, dual)):
                noise = None if noises is None else noises[branch][place, image_place]
                chosen.append((scores, *_decide(scores, sparse_ratio, noise, tau)))
            out_tokens = int(len(patches) * aggr_ratio * sparse_ratio)
            merge = _paper_similarity if paper else _open_similarity
            rows[-1].append(
                merge(weights, image[:classes], patches, texts, chosen, out_tokens, top_k)
            )
            masks.append(torch.stack([torch.stack(decision) for *_, decision in chosen]))
    masks = torch.stack(masks).reshape(len(images), len(captions), len(masks[0]), -1)
    by_branch = masks.permute(2, 1, 0, 3)
    return torch.stack([torch.stack(row) for row in rows]), tuple(
        by_branch
    ) if paper else by_branch.sum(0)


def relevance(tokens, words, mlp=None, top_k=5, patch_mask=None):
    """HRPA of one image's tokens (P, C) and one caption's words (L, C): a number.

    `mlp` is the part of the state dict below `relevance_mlp.`, None in the open version. Tokens whose `patch_mask` (P,) is 0
    are as if they were not there.
    """
    tokens = [
        token for place, token in enumerate(tokens) if patch_mask is None or patch_mask[place]
    ]
    alike = [[_cosine(word, token) for token in tokens] for word in words]
    if mlp is None:
        alike = [[value if value > 0 else 0.1 * value for value in row] for row in alike]
    best_of_word = [max(row) for row in alike]
    best_of_token = [max(column) for column in zip(*alike, strict=True)]
    similarity = _mean(best_of_word) + _mean(best_of_token)
    if mlp is not None:
        similarity = (
            similarity + _of_best(mlp, best_of_word, top_k) + _of_best(mlp, best_of_token, top_k)
        )
    return similarity


def contrastive(scores, img_ids=None, margin=0.2, max_violation=False):
    """Every pair's excess over its row's and its column's diagonal, (B, B) → a number; `img_ids` is a list of B."""
    ids = range(len(scores)) if img_ids is None else img_ids
    by_row, by_column = ([[scores[i, i] * 0] for i in range(len(scores))] for _ in range(2))
    for i in range(len(scores)):
        for j in range(len(scores)):
            if ids[i] == ids[j]:
                continue
            for match, group in ((i, by_row[i]), (j, by_column[j])):
                excess = margin + scores[i, j] - scores[match, match]
                if excess > 0:
                    group.append(excess)
    return sum(max(group) if max_violation else sum(group) for group in by_row + by_column)


def ratio(score_mask, target_ratio=0.5, lambda_sparse=1.0, lambda_dense=1.0):
    """A mask's or a tuple of masks' squared distance from the target: a number."""
    if not isinstance(score_mask, tuple):
        return (_mean(list(score_mask.flatten())) - target_ratio) ** 2
    return sum(
        weight * ratio(mask, target_ratio)
        for weight, mask in zip((lambda_sparse, lambda_dense), score_mask, strict=False)
    )


def part(weights, prefix):
    """What of the state dict is below `prefix`, by the names without it."""
    return {
        key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)
    }


def _scores(weights, patches, texts, beta, paper, dual):
    """The scores of the patches, a list of N for each branch; texts: the words of the caption and, if there, the long one."""
    with torch.no_grad():
        of_image, *of_texts = (
            [_cosine(patch, sum(vectors) / len(vectors)) for patch in patches]
            for vectors in (patches, *texts)
        )
        if paper:
            of_image, *of_texts = (sdtps.min_max(values) for values in (of_image, *of_texts))
    if not paper:
        return [[of_image[i] + values[i] for i in range(len(patches))] for values in of_texts]
    names = ["sparse_net_cap", "sparse_net_long"][: len(texts) if dual else 1]
    return [
        [
            (1 - 2 * beta) * _predict(weights, name, patch)
            + beta * (sum(values[i] for values in of_texts) + 2 * of_image[i])
            for i, patch in enumerate(patches)
        ]
        for name in names
    ]


def _decide(scores, sparse_ratio, noise, tau):
    """Places of the kept and of the dropped patches, best first, and every patch's decision."""
    kept, dropped = sdtps.choose(scores, sparse_ratio)
    decision = [torch.tensor(float(i in kept), dtype=score.dtype) for i, score in enumerate(scores)]
    if noise is not None:
        soft = sdtps.soft_decision(scores, noise, tau)
        decision = [
            hard + (value - value.detach()) for hard, value in zip(decision, soft, strict=True)
        ]
    return kept, dropped, decision


def _open_similarity(weights, first, patches, texts, chosen, out_tokens, top_k):
    """Each branch's tokens against its own words."""
    aggregation = _aggregation(weights, "aggr_net.weight.")
    return sum(
        relevance(
            torch.cat([first, sdtps.slim(aggregation, patches, *branch, out_tokens)]),
            words,
            top_k=top_k,
        )
        for branch, words in zip(chosen, texts, strict=True)
    )


def _paper_similarity(weights, first, patches, texts, chosen, out_tokens, top_k):
    """The branches' aggregated tokens added and their extra tokens' mean, against the caption's words."""
    is_dual = any(key.startswith("aggr_net.weight_sparse.") for key in weights)
    names = (
        ["aggr_net.weight_sparse.", "aggr_net.weight_dense."] if is_dual else ["aggr_net.weight."]
    )
    # without long captions the second is not used
    slimmed = [
        sdtps.slim(_aggregation(weights, name), patches, *branch, out_tokens)
        for name, branch in zip(names, chosen, strict=False)
    ]
    aggregated, extra = (
        sum(tokens[:-1] for tokens in slimmed),
        sum(tokens[-1:] for tokens in slimmed) / len(slimmed),
    )
    return relevance(
        torch.cat([first, aggregated, extra]), texts[0], part(weights, "hrpa.relevance_mlp."), top_k
    )


def _aggregation(weights, prefix):
    """A weight MLP and the scale, by the names that `sdtps.slim` has for them."""
    named = {f"aggr.weight.{key}": value for key, value in part(weights, prefix).items()}
    return named | {"aggr.scale": weights["aggr_net.scale"]}


def _predict(weights, name, patch):
    return sdtps.predict(
        {f"sparse.{key}": value for key, value in part(weights, f"{name}.").items()}, patch
    )


def _cosine(first, second):
    """0 where one of them is zero, as the extra token is where nothing is dropped."""
    length = first.norm() * second.norm()
    return first @ second / length if length > 0 else first @ second


def _of_best(mlp, values, top_k):
    """The MLP of the `top_k` largest values, largest first; zeros follow where there are fewer."""
    best = sorted(values, key=lambda value: -value.item())[:top_k]
    vector = torch.stack(best + [torch.zeros_like(values[0])] * (top_k - len(best)))
    hidden = sdtps.gelu(mlp["0.weight"] @ vector + mlp["0.bias"])
    return (mlp["2.weight"] @ hidden + mlp["2.bias"])[0]


def _mean(values):
    return sum(values) / len(values)
