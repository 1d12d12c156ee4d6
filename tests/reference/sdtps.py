"""SDTPS one modality, sample and patch at a time (spec 4)."""
import math

import torch

STATE_NAMES = ("rgb", "nir", "tir")


def sdtps(weights, tokens, globals_, sparse_ratio, aggr_ratio, beta, tau=1.0, noises=None, penalty=False):
    """Slimmed tokens [(B, N_c + 1, C)] and decision masks [(B, N)] of the three modalities.

    weights: the state dict; tokens [(B, N, C)] and globals_ [(B, C)] in the order RGB, NI, TI. `noises` [(B, N)] is the
    Gumbel noise of a training forward, None where there is none. With `penalty` the decision is subtracted from the
    logits as (1 - D)·1e10, the form that explodes, instead of multiplying the exponentials.
    """
    slimmed, masks = [], []
    for index, name in enumerate(STATE_NAMES):
        own = {key.removeprefix(f"{name}_"): value for key, value in weights.items() if key.startswith(f"{name}_")}
        others = [other for other in range(3) if other != index]
        samples = []
        for sample in range(len(tokens[index])):
            noise = None if noises is None else noises[index][sample]
            guides = [globals_[modality][sample] for modality in (index, *others)]
            samples.append(_slim(own, tokens[index][sample], guides, sparse_ratio, aggr_ratio, beta, tau, noise, penalty))
        slimmed.append(torch.stack([tokens for tokens, _ in samples]))
        masks.append(torch.stack([mask for _, mask in samples]))
    return slimmed, masks


def soft_decision(scores, noise, tau):
    """softmax((score + noise) / tau) over the patches: the mask's gradient."""
    return softmax([(score + gumbel) / tau for score, gumbel in zip(scores, noise, strict=True)])


def softmax(values):
    largest = max(value.item() for value in values)
    powers = [torch.exp(value - largest) for value in values]
    return [power / sum(powers) for power in powers]


def _slim(own, patches, guides, sparse_ratio, aggr_ratio, beta, tau, noise, penalty):
    count, width = patches.shape
    with torch.no_grad():
        s_im, s_a, s_b = ([_cosine(patch, guide) for patch in patches] for guide in guides)
        s_im, s_a, s_b = _min_max(s_im), _min_max(s_a), _min_max(s_b)
    scores = [(1 - 2 * beta) * _predict(own, patches[i]) + beta * (s_a[i] + s_b[i] + 2 * s_im[i]) for i in range(count)]

    best_first = sorted(range(count), key=lambda i: -scores[i].item())
    keep = max(1, math.ceil(count * sparse_ratio))
    selected, dropped = best_first[:keep], best_first[keep:]

    extra = torch.zeros(width, dtype=patches.dtype)
    if dropped:
        for share, i in zip(softmax([scores[i] for i in dropped]), dropped, strict=True):
            extra = extra + share * patches[i]

    decision = [torch.tensor(float(i in selected), dtype=patches.dtype) for i in range(count)]
    if noise is not None:
        soft = soft_decision(scores, noise, tau)
        decision = [hard + (value - value.detach()) for hard, value in zip(decision, soft, strict=True)]

    logits = [_aggregation_logits(own, patches[i]) for i in selected]
    out_tokens = []
    for c in range(int(count * aggr_ratio * sparse_ratio)):
        if penalty:
            shares = softmax([logit[c] - (1 - decision[i]) * 1e10 for logit, i in zip(logits, selected, strict=True)])
        else:
            powers = [decision[i] * torch.exp(logit[c]) for logit, i in zip(logits, selected, strict=True)]
            shares = [power / sum(powers) for power in powers]
        out_tokens.append(sum(share * patches[i] for share, i in zip(shares, selected, strict=True)))
    return torch.stack([*out_tokens, extra]), torch.stack(decision)


def _cosine(first, second):
    return first @ second / (first.norm() * second.norm())


def _min_max(values):
    low, high = min(values), max(values)
    return [(value - low) / (high - low + 1e-8) for value in values]


def _linear(own, name, vector):
    return own[f"{name}.weight"] @ vector + own[f"{name}.bias"]


def _gelu(vector):
    return vector * (1 + torch.erf(vector / math.sqrt(2))) / 2


def _predict(own, patch):
    hidden = _gelu(_linear(own, "sparse.score_predictor.0", patch))
    return 1 / (1 + torch.exp(-_linear(own, "sparse.score_predictor.2", hidden)[0]))


def _aggregation_logits(own, patch):
    centred = patch - patch.mean()
    normed = centred / torch.sqrt((centred * centred).mean() + 1e-5)
    normed = normed * own["aggr.weight.0.weight"] + own["aggr.weight.0.bias"]
    return _linear(own, "aggr.weight.3", _gelu(_linear(own, "aggr.weight.1", normed))) * own["aggr.scale"].reshape(())
