"""Baselines of slimming, one image and one patch at a time, as their papers describe them (studies/baselines.py)."""

import torch


def cosine(one, other):
    return one @ other / (one @ one * (other @ other)) ** 0.5


def means(patches, weights, groups):
    """The mean of each group of places of patches (N, C), with weights (N,)."""
    return torch.stack(
        [
            sum(weights[place] * patches[place] for place in group)
            / sum(weights[place] for place in group)
            for group in groups
        ]
    )


def totals(sizes, groups):
    return [float(sum(sizes[place] for place in group)) for group in groups]


def tome(keys, count):
    """ToMe (Bolya et al., ICLR 2023, section 3): keys (N, D) → `count` groups of places, each with the one that stays first,
    ascending by it."""
    likeness = {
        (one, other): float(cosine(keys[one], keys[other]))
        for one in range(0, len(keys), 2)
        for other in range(1, len(keys), 2)
    }
    partner = {
        one: best(range(1, len(keys), 2), lambda other, one=one: likeness[one, other])
        for one in range(0, len(keys), 2)
    }
    sources = sorted(partner, key=lambda one: -likeness[one, partner[one]])[: len(keys) - count]
    return groups_of(len(keys), {one: partner[one] for one in sources})


def best(places, value):
    return max(places, key=value)


def groups_of(count, goal):
    """Groups of `count` places of which some move to a `goal`."""
    groups = {place: [place] for place in range(count) if place not in goal}
    for place, other in goal.items():
        groups[other].append(place)
    return list(groups.values())


def haar_energy(channel):
    """One channel (H, W) with even sides → (H, W): at each pixel the squares of the three high-frequency coefficients of its
    block of 2×2."""
    basis = [
        torch.tensor(rows, dtype=channel.dtype) / 2
        for rows in ([[1, -1], [1, -1]], [[1, 1], [-1, -1]], [[1, -1], [-1, 1]])
    ]
    energy = torch.zeros_like(channel)
    for row in range(0, channel.shape[0], 2):
        for column in range(0, channel.shape[1], 2):
            block = channel[row : row + 2, column : column + 2]
            energy[row : row + 2, column : column + 2] = sum(
                (block * wave).sum() ** 2 for wave in basis
            )
    return energy


def patch_means(pixels, size, stride):
    """Mean over each patch of (H, W), row by row of the grid."""
    rows, columns = (
        (side - patch) // step + 1
        for side, patch, step in zip(pixels.shape, size, stride, strict=True)
    )
    return [
        pixels[
            row * stride[0] : row * stride[0] + size[0],
            column * stride[1] : column * stride[1] + size[1],
        ].mean()
        for row in range(rows)
        for column in range(columns)
    ]


def union_of_tops(one, other, count):
    """The first `count` places that appear when the orders of two lists of scores, best first, are read in turn."""
    orders = [
        sorted(range(len(values)), key=lambda place, values=values: -float(values[place]))
        for values in (one, other)
    ]
    order = []
    for pair in zip(*orders, strict=True):
        order += [place for place in dict.fromkeys(pair) if place not in order]
    return sorted(order[:count])


def otsu(scores):
    """1.0 for each of `scores` above the one among them that parts them best, by the variances within both sides; else 0.0."""

    def within(threshold):
        sides = [
            [score for score in scores if (score > threshold) is above] for above in (False, True)
        ]
        means = [sum(side) / len(side) for side in sides]
        return sum(
            (score - mean) ** 2 for side, mean in zip(sides, means, strict=True) for score in side
        )

    best = min(sorted(scores)[:-1], key=within)
    return [float(score > best) for score in scores]
