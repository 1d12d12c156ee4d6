"""The choice of learning rates: every rate of a grid with the first seed, the best three with the others, the best mean."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from studies.results import final_metric, read_result

FINALISTS = 3


def finalists(variants: Iterable[Mapping[str, Any]], pattern: int) -> list[str]:
    """The names of the variants of a result that have one of the FINALISTS best mAPs of their family, by the seeds that all of
    a family have."""
    names = []
    for members in families(variants).values():
        maps = {str(one["name"]): final_metric(one, pattern, "mAP") for one in members}
        first = next(iter(members[0]["runs"]), "")
        ranked = sorted(
            (name for name in maps if first in maps[name]), key=lambda n: maps[n][first]
        )
        names += ranked[-FINALISTS:]
    return names


def choice(members: Sequence[Mapping[str, Any]], pattern: int) -> Mapping[str, Any]:
    """Of the rates of one family the one with the best mean mAP among those with the most seeds."""
    maps = [final_metric(one, pattern, "mAP").values() for one in members]
    most = max(map(len, maps))
    best = max(
        (mean(values), index) for index, values in enumerate(maps) if values and len(values) == most
    )
    return members[best[1]]


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
            rates[family] = choice(members, result["patterns"][-1])["rate"]
    return rates
