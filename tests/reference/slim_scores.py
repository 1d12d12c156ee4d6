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
    return group_places(len(keys), {one: partner[one] for one in sources})


def best(places, value):
    return max(places, key=value)


def group_places(count, goal):
    """Groups of `count` places of which some move to a `goal`, or to none."""
    groups = {place: [place] for place in range(count) if place not in goal}
    for place, other in goal.items():
        if other is not None:
            groups[other].append(place)
    return list(groups.values())


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
