"""How well SDTPS's choice finds the person: one image, one modality and one patch at a time (docs/method.md, SDTPS)."""

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
