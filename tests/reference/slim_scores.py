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


def haar_energy(channel):
    """One channel (H, W) with even sides → (H, W): at each pixel the squares of the three high-frequency coefficients of its
    block of 2×2."""
    basis = [torch.tensor(rows, dtype=channel.dtype) / 2 for rows in (
        [[1, -1], [1, -1]], [[1, 1], [-1, -1]], [[1, -1], [-1, 1]])]
    energy = torch.zeros_like(channel)
    for row in range(0, channel.shape[0], 2):
        for column in range(0, channel.shape[1], 2):
            block = channel[row:row + 2, column:column + 2]
            energy[row:row + 2, column:column + 2] = sum((block * wave).sum() ** 2 for wave in basis)
    return energy


def patch_means(pixels, size, stride):
    """Mean over each patch of (H, W), row by row of the grid."""
    rows, columns = ((side - patch) // step + 1 for side, patch, step in zip(pixels.shape, size, stride, strict=True))
    return [pixels[row * stride[0]:row * stride[0] + size[0], column * stride[1]:column * stride[1] + size[1]].mean()
            for row in range(rows) for column in range(columns)]


def union_of_tops(one, other, count):
    """The first `count` places that appear when the orders of two lists of scores, best first, are read in turn."""
    orders = [sorted(range(len(values)), key=lambda place, values=values: -float(values[place])) for values in (one, other)]
    found = []
    for pair in zip(*orders, strict=True):
        found += [place for place in dict.fromkeys(pair) if place not in found]
    return sorted(found[:count])
