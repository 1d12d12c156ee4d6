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


def mctf(patches, attention, sizes, count):
    """MCTF (Lee et al., CVPR 2024, sections 3.2 and 3.3): patches (N, C) → groups as `tome`'s, in turn of A and of B."""

    def attraction(one, other):
        little = (attention[one] * attention[other]) ** (-1 / 20)
        return (
            (cosine(patches[one], patches[other]) + 1)
            / 2
            * little
            * (sizes[one] * sizes[other]) ** (-1 / 40)
        )

    goal, dropped = {}, len(patches) - count
    for parity, number in ((0, dropped // 2), (1, dropped - dropped // 2)):
        others = [place for place in range(1 - parity, len(patches), 2) if place not in goal]
        drawn = {}
        for one in range(parity, len(patches), 2):
            other = best(others, lambda other, one=one: float(attraction(one, other)))
            drawn[one] = (float(attraction(one, other)), other)
        for one in sorted(drawn, key=lambda one: -drawn[one][0])[:number]:
            goal[one] = drawn[one][1]
    return group_places(len(patches), {one: goal.get(other, other) for one, other in goal.items()})


def diffrate(patches, attention, unpruned, count):
    """DiffRate (Chen et al., ICCV 2023, section 3.3): groups as `tome`'s, and the cosine of each merged patch with its goal."""
    order = sorted(range(len(patches)), key=lambda place: -float(attention[place]))
    goal = dict.fromkeys(order[unpruned:])
    for one in order[count:unpruned]:
        goal[one] = best(
            order[:count], lambda other, one=one: float(cosine(patches[one], patches[other]))
        )
    return group_places(len(patches), goal), {
        one: float(cosine(patches[one], patches[other]))
        for one, other in goal.items()
        if other is not None
    }


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
