"""SDTPS one modality, sample and patch at a time (docs/method.md, SDTPS)."""

import math
from itertools import permutations

import torch

STATE_NAMES = ("rgb", "nir", "tir")


def sdtps(
    weights,
    tokens,
    global_feats,
    sparse_ratio,
    aggr_ratio,
    beta,
    tau=1.0,
    noises=None,
    select=False,
    missing=(),
    nudges=None,
):
    """Slimmed tokens [(B, N_c + 1, C)] and decision masks [(B, N)] of the three modalities, by the state dict `weights`, tokens
    [(B, N, C)] and globals_ [(B, C)] in the order RGB, NI, TI. `noises` [(B, N)] is the Gumbel noise of a training forward, if
    any; with `select` patches are chosen by it as well. The places in `missing` are those of the modalities that guide no
    other. `nudges` [(B, N)] are added to the values that choose, to decide between those that are equal but for roundings."""
    slimmed, masks = [], []
    for index, name in enumerate(STATE_NAMES):
        prefix, patches = f"{name}_", tokens[index]
        named = ((key, value) for key, value in weights.items() if key.startswith(prefix))
        branch_weights = {key.removeprefix(prefix): value for key, value in named}
        samples = []
        for sample in range(len(patches)):
            guides = [guide[sample] for guide in global_feats]
            scores = score_patches(branch_weights, patches[sample], index, guides, beta, missing)
            noise = None if noises is None else noises[index][sample]
            values = [scores[i] + noise[i] for i in range(len(scores))] if select else scores
            if nudges is not None:
                pairs = zip(values, nudges[index][sample], strict=True)
                values = [value + nudge for value, nudge in pairs]
            kept, dropped = choose(values, sparse_ratio)
            decision = [
                torch.tensor(float(i in kept), dtype=patches.dtype) for i in range(len(scores))
            ]
            if noise is not None:
                noisy = zip(scores, noise, strict=True)
                soft = softmax([(score + gumbel) / tau for score, gumbel in noisy])
                pairs = zip(decision, soft, strict=True)
                decision = [hard + (value - value.detach()) for hard, value in pairs]
            choice, count = (kept, dropped, decision), int(len(scores) * aggr_ratio * sparse_ratio)
            rows = slim(branch_weights, patches[sample], scores, *choice, count)
            samples.append((rows, torch.stack(decision)))
        slimmed.append(torch.stack([merged for merged, _ in samples]))
        masks.append(torch.stack([mask for _, mask in samples]))
    return slimmed, masks


def score_patches(weights, patches, index, guides, beta, missing):
    """The scores of one sample's patches (N, C) of the modality at place `index`, guided by the globals [(C,)]: its own counts
    twice, the others once or, if missing, not at all; together they count as four."""
    counts = [2 if i == index else int(i not in missing) for i in range(len(guides))]
    with torch.no_grad():
        similarities = [min_max([cosine(patch, guide) for patch in patches]) for guide in guides]
    return [
        (1 - 2 * beta) * predict(weights, patch)
        + beta
        * 4
        * sum(count * values[i] for count, values in zip(counts, similarities, strict=True))
        / sum(counts)
        for i, patch in enumerate(patches)
    ]


def choose(values, sparse_ratio):
    """The places of the largest values, largest first, and those of the others."""
    best_first = sorted(range(len(values)), key=lambda i: -values[i].item())
    keep = max(1, math.ceil(len(values) * sparse_ratio))
    return best_first[:keep], best_first[keep:]


def slim(weights, patches, scores, kept, dropped, decision, out_tokens):
    """One sample's patches (N, C) → aggregated tokens and the extra one (out_tokens + 1, C)."""
    extra = torch.zeros(patches.shape[1], dtype=patches.dtype)
    if dropped:
        for share, i in zip(softmax([scores[i] for i in dropped]), dropped, strict=True):
            extra = extra + share * patches[i]

    logits = [_aggregation_logits(weights, patches[i]) for i in kept]
    aggregated = []
    for c in range(out_tokens):
        powers = [decision[i] * torch.exp(logit[c]) for logit, i in zip(logits, kept, strict=True)]
        total = sum(powers)
        aggregated.append(
            sum(power / total * patches[i] for power, i in zip(powers, kept, strict=True))
        )
    return torch.stack([*aggregated, extra])


def softmax(values):
    largest = max(torch.as_tensor(value).item() for value in values)
    powers = [torch.exp(torch.as_tensor(value - largest)) for value in values]
    total = sum(powers)
    return [power / total for power in powers]


def plackett_luce(scores, keep):
    """{choice, in its order: probability} of patches drawn one by one, by chances proportional to exp(score) of those left."""
    chances = {}
    for choice in permutations(range(len(scores)), keep):
        left = [math.exp(score) for score in scores]
        chances[choice] = 1.0
        for place in choice:
            chances[choice] *= left[place] / sum(left)
            left[place] = 0.0
    return chances


def cosine(first, second):
    return first @ second / (first.norm() * second.norm())


def min_max(values):
    low, high = min(values), max(values)
    return [(value - low) / (high - low + 1e-8) for value in values]


def _linear(weights, name, vector):
    return weights[f"{name}.weight"] @ vector + weights[f"{name}.bias"]


def gelu(vector):
    return vector * (1 + torch.erf(vector / math.sqrt(2))) / 2


def predict(weights, patch):
    hidden = gelu(_linear(weights, "sparse.score_predictor.0", patch))
    return 1 / (1 + torch.exp(-_linear(weights, "sparse.score_predictor.2", hidden)[0]))


def _aggregation_logits(weights, patch):
    centred = patch - patch.mean()
    normed = centred / torch.sqrt((centred * centred).mean() + 1e-5)
    normed = normed * weights["aggr.weight.0.weight"] + weights["aggr.weight.0.bias"]
    return _linear(
        weights, "aggr.weight.3", gelu(_linear(weights, "aggr.weight.1", normed))
    ) * weights["aggr.scale"].reshape(())
