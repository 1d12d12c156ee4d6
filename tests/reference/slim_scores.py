"""Scores of slimming and what they do with dropped patches, one image and one patch at a time (docs/method.md)."""
import torch


def cosine(one, other):
    return one @ other / (one @ one * (other @ other)) ** 0.5


def merged(patches, sizes, keys, count, dropped=None):
    """ToMe (Bolya et al., ICLR 2023, section 3) of one image: patches (N, C), their sizes (N,) and keys (N, D) → `count` of
    them, their sizes, and the places of those that were merged into another. `dropped` places are taken where they are given.
    """
    groups = [[place] for place in range(len(patches))]
    best = {}
    for place in range(0, len(patches), 2):
        likeness = {other: float(cosine(keys[place], keys[other])) for other in range(1, len(patches), 2)}
        partner = max(likeness, key=likeness.get)
        best[place] = likeness[partner], partner
    if dropped is None:
        dropped = sorted(best, key=lambda place: best[place][0])[len(best) - (len(patches) - count):]
    for place in dropped:
        groups[best[place][1]].append(place)
        groups[place] = []
    groups = [group for group in groups if group]
    means = [sum(sizes[place] * patches[place] for place in group) / sum(sizes[place] for place in group) for group in groups]
    return torch.stack(means), torch.stack([sum(sizes[place] for place in group) for group in groups]), set(dropped)
