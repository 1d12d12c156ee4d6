"""The losses one sample and one pair at a time (docs/method.md, Losses)."""

import torch


def batch_hard_triplet_loss(features, labels, margin=None):
    """Farthest positive against nearest negative of every sample; soft margin where `margin` is None."""
    losses = []
    for anchor, label in zip(features, labels, strict=True):
        positives, negatives = [], []
        for other, other_label in zip(features, labels, strict=True):
            if other is not anchor:
                distance = torch.sqrt(torch.clamp(((anchor - other) ** 2).sum(), min=1e-12))
                (positives if other_label == label else negatives).append(distance)
        gap = max(positives) - min(negatives)
        losses.append(
            torch.log(1 + torch.exp(gap)) if margin is None else torch.clamp(gap + margin, min=0)
        )
    return sum(losses) / len(losses)


def label_smoothed_cross_entropy(scores, labels, smoothing):
    """-Σ target · log softmax(scores), targets (1 - ε)·onehot + ε/K."""
    losses = []
    for row, label in zip(scores, labels, strict=True):
        log_total = torch.log(torch.exp(row).sum())
        for k, score in enumerate(row):
            target = smoothing / len(row) + (1 - smoothing if k == label else 0)
            losses.append(target * (log_total - score))
    return sum(losses) / len(scores)


def center_loss(features, labels, centers):
    """Squared distance of every sample from its identity's center, channel by channel; the mean over the samples."""
    total = 0.0
    for feature, label in zip(features, labels.tolist(), strict=True):
        for channel, value in enumerate(feature):
            total = total + (value - centers[label][channel]) ** 2
    return total / len(features)


def distill_loss(logits, teacher, temperature):
    """T² Σ_k p_k · (log p_k - log q_k) of every sample, p of the teacher and q of the logits; the mean over the samples."""
    losses = []
    for row, target in zip(logits, teacher, strict=True):
        shares, log_shares = [], []
        for scores in (target, row):
            powers = [torch.exp(score / temperature) for score in scores]
            shares.append([power / sum(powers) for power in powers])
            log_shares.append([torch.log(share) for share in shares[-1]])
        terms = zip(shares[0], log_shares[0], log_shares[1], strict=True)
        losses.append(temperature**2 * sum(p * (log_p - log_q) for p, log_p, log_q in terms))
    return sum(losses) / len(losses)


def feature_distill_loss(features, teacher):
    """Mean over the samples of 1 - cosine to the teacher's feature, and over all pairs of the distance of both cosines."""
    count = len(features)
    own = sum(1 - _cosine(features[i], teacher[i]) for i in range(count)) / count
    distances = sum(
        abs(_cosine(features[i], features[j]) - _cosine(teacher[i], teacher[j]))
        for i in range(count)
        for j in range(count)
    )
    return own + distances / count**2


def _cosine(first, second):
    return first @ second / ((first @ first) * (second @ second)) ** 0.5
