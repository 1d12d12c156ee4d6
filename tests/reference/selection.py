"""How well SDTPS's choice finds the person: one image, one modality and one patch at a time (docs/method.md, SDTPS)."""

import math

import numpy as np
from PIL import Image


def foreground(mask_path, size, patch, stride):
    """[whether at least half of a patch's pixels are white], row by row, of the mask at (height, width) by nearest pixels."""
    with Image.open(mask_path) as image:
        mask = np.asarray(image)
    (h, w), (height, width) = mask.shape, size
    hits = []
    for top in range(0, height - patch[0] + 1, stride[0]):
        for left in range(0, width - patch[1] + 1, stride[1]):
            white = 0
            for y in range(top, top + patch[0]):
                for x in range(left, left + patch[1]):
                    # The pixel that holds the middle of this one, ((y + 1/2)·h/height, (x + 1/2)·w/width).
                    white += (
                        mask[(2 * y + 1) * h // (2 * height), (2 * x + 1) * w // (2 * width)] == 255
                    )
            hits.append(bool(2 * white >= patch[0] * patch[1]))
    return hits


def average_precision(scores, relevant):
    """Σ (recall's growth)·precision over the thresholds, every score that occurs, from the highest down; None without any
    relevant."""
    if not any(relevant):
        return None
    total = last_recall = 0.0
    for threshold in sorted(set(scores), reverse=True):
        hits = [
            is_relevant
            for score, is_relevant in zip(scores, relevant, strict=True)
            if score >= threshold
        ]
        recall = sum(hits) / sum(relevant)
        total += (recall - last_recall) * sum(hits) / len(hits)
        last_recall = recall
    return total


def detectors(weights, patches, global_feats, modality, missing, beta, guide_missing):
    """The score of each of one modality's patches (N, C), and its parts: {"score", "MLP", modality that guides: [N numbers]}.

    weights: the modality's own, by their names in its TokenSparse; globals_ {modality: (C,)}. The own guides twice.
    """
    parts = {"MLP": [predict(weights, patch) for patch in patches]}
    shares = {}
    for other, guide in global_feats.items():
        parts[other] = min_max(
            [patch @ guide / (np.linalg.norm(patch) * np.linalg.norm(guide)) for patch in patches]
        )
        shares[other] = (
            2 if other == modality else 1 if guide_missing or other not in missing else 0
        )
    guided = [
        sum(
            4 * share / sum(shares.values()) * parts[other][place]
            for other, share in shares.items()
        )
        for place in range(len(patches))
    ]
    score = [
        (1 - 2 * beta) * predicted + beta * guidance
        for predicted, guidance in zip(parts["MLP"], guided, strict=True)
    ]
    return {"score": score} | parts


def best_places(scores, ratio):
    """The places of the best, the first of equals."""
    return sorted(range(len(scores)), key=lambda place: -scores[place])[
        : max(1, math.ceil(ratio * len(scores)))
    ]


def min_max(values):
    return [(value - min(values)) / (max(values) - min(values) + 1e-8) for value in values]


def predict(weights, patch):
    hidden = weights["score_predictor.0.weight"] @ patch + weights["score_predictor.0.bias"]
    hidden = np.array([value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in hidden])
    return 1 / (
        1
        + math.exp(
            -(weights["score_predictor.2.weight"] @ hidden + weights["score_predictor.2.bias"])[0]
        )
    )
