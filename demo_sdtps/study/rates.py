"""The choice of learning rates: with the first seed from a grid's middle, the best three with the others, the best mean."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from demo_sdtps.study.results import final_metric, read_result

FINALISTS = 3


def next_rates(variants: Iterable[Mapping[str, Any]], pattern: int) -> list[str]:
    """The names of the variants of a result that are to be run next with the first seed: in each family the middle of the grid
    and its neighbours, then the neighbours of the best so far, until these are there."""
    names = []
    for members in families(variants).values():
        maps = _first_maps(members, pattern)
        best = max(maps, key=maps.__getitem__, default=len(members) // 2)
        around = range(max(0, best - 1), min(len(members), best + 2))
        names += [str(members[place]["name"]) for place in around if place not in maps]
    return names


def finalists(variants: Iterable[Mapping[str, Any]], pattern: int) -> list[str]:
    """The names of the variants of a result that have one of the FINALISTS best mAPs of their family with the first seed."""
    names = []
    for members in families(variants).values():
        maps = _first_maps(members, pattern)
        ranked = sorted(maps, key=maps.__getitem__)
        names += [str(members[place]["name"]) for place in ranked[-FINALISTS:]]
    return names


def _first_maps(members: Sequence[Mapping[str, Any]], pattern: int) -> dict[int, float]:
    """mAP with the first seed of the members of a family that have a run, by place in the family; 0 of a run that failed."""
    first = min((seed for one in members for seed in one["runs"]), key=int, default="")
    return {
        place: final_metric(one, pattern, "mAP").get(first, 0.0)
        for place, one in enumerate(members)
        if one["runs"]
    }


def choice(members: Sequence[Mapping[str, Any]], pattern: int) -> Mapping[str, Any] | None:
    """Of the rates of one family the one with the best mean mAP among those with the most seeds; None where all runs failed."""
    maps = [final_metric(one, pattern, "mAP").values() for one in members]
    most = max(map(len, maps))
    means = [
        (mean(values), index) for index, values in enumerate(maps) if values and len(values) == most
    ]
    return members[max(means)[1]] if means else None


def families(variants: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The variants of a result with a grid, by what was tuned, in order."""
    by_family: dict[str, list[Mapping[str, Any]]] = {}
    for one in variants:
        by_family.setdefault(one["family"], []).append(one)
    return by_family


def chosen_rates(folder: Path) -> dict[str, float]:
    """The rate of each variant that the results rates*.json of a folder chose."""
    rates = {}
    for path in sorted(folder.glob("rates*.json")):
        result = read_result(path)
        for family, members in families(result["variants"]).items():
            if best := choice(members, result["patterns"][-1]):
                rates[family] = best["rate"]
    return rates
