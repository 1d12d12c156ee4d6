"""The result of a study, a JSON file: what the tables read of the runs; and the choice of learning rates by it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.extraction import CASES
from demo_sdtps.modeling.checkpoints.records import ANY, MEASURED
from demo_sdtps.runtime.files import atomic_write, read_json

EVALUATION = "evaluation"
VARIANT = {"name": str, "runs": {ANY: {"patterns": (None, MEASURED)}}}
FORM = {"title": str, "patterns": [int], "variants": [VARIANT]}
INCOMPLETE = [case for case in CASES if case != "nothing"]
FINALISTS = 3


def measurement(name: str, content: Any) -> dict[str, Any]:
    """What the tables read of a JSON file of `steps` (runs.py): metrics by return pattern, mAP by case and return pattern, or
    mAP by the modalities of query and gallery."""
    if name.startswith(EVALUATION):
        return {"patterns": next(iter(content["cases"].values()))}
    if name == "missing":
        cases = content["cases"].items()
        return {name: {case: {p: one["mAP"] for p, one in maps.items()} for case, maps in cases}}
    if "cross_modal" in content:
        return {name: content["cross_modal"]["mAP"]}
    return {name: content}


def result_json(content: Any, levels: int = 4, indent: str = "\n") -> str:
    """JSON with a line for each entry down to `levels`, and for each that is deeper one with all of its own."""
    if not levels or not content or not isinstance(content, (dict, list)):
        return json.dumps(content)
    entries = [
        f"{json.dumps(key)}: {result_json(value, levels - 1, indent + ' ')}"
        for key, value in (content.items() if isinstance(content, dict) else ())
    ] or [result_json(value, levels - 1, indent + " ") for value in content]
    start, end = "{}" if isinstance(content, dict) else "[]"
    return f"{start}{indent} {f',{indent} '.join(entries)}{indent}{end}"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    is_choice = any("family" in variant for variant in result["variants"])
    with atomic_write(path) as temporary:
        text = result_json(result, levels=2 if is_choice else 4)
        temporary.write_text(text + "\n", encoding="utf-8")


def read_result(path: Path) -> dict[str, Any]:
    """Content of the result of a study."""
    result = read_json(path, FORM)
    if result is None:
        raise UserError(
            f"{path} is no result of demo-sdtps study, such as docs/results/slimming.json; give another --json."
        )
    return result


def values_by_seed(
    variant: Mapping[str, Any], key: str, value_of: Callable[[Any], float]
) -> dict[str, float]:
    """In percent what `value_of` says of the entry `key` of each run that has one."""
    return {seed: 100 * value_of(run[key]) for seed, run in variant["runs"].items() if key in run}


def final_metric(variant: Mapping[str, Any], pattern: int, metric: str) -> dict[str, float]:
    """A metric in percent after the last epoch, by seed, of the runs that finished."""
    return values_by_seed(variant, "patterns", lambda patterns: patterns[str(pattern)][metric])


def missing_maps(variant: Mapping[str, Any], pattern: int) -> dict[str, float]:
    """mAP in percent by seed, mean over the cases of missing modalities."""
    return values_by_seed(
        variant, "missing", lambda cases: mean(cases[case][str(pattern)] for case in INCOMPLETE)
    )


def cross_modal_maps(variant: Mapping[str, Any], how: str, is_common: bool) -> dict[str, float]:
    """mAP in percent by seed, mean over the cells of unequal sets with, or without, a common modality."""

    def mean_cell(matrix: dict[str, dict[str, float]]) -> float:
        return mean(
            value
            for query, row in matrix.items()
            for gallery, value in row.items()
            if query != gallery and bool({*query} & {*gallery}) is is_common
        )

    return values_by_seed(variant, f"cross_modal_{how}", mean_cell)


def next_rates(variants: Iterable[Mapping[str, Any]], pattern: int) -> list[str]:
    """The names of the variants of a result that are to be run next with the first seed: in each family the middle of the grid
    and its neighbours, then the neighbours of the best so far, until these are there."""
    names = []
    for members in families(variants).values():
        maps = _first_maps(members, pattern)
        middle = len(members) // 2
        around: set[int] = set()
        for best in (middle, max(maps, key=maps.__getitem__, default=middle)):
            around |= {*range(max(0, best - 1), min(len(members), best + 2))}
        names += [str(members[place]["name"]) for place in sorted(around - maps.keys())]
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
    started = ((place, one) for place, one in enumerate(members) if one["runs"])
    return {place: final_metric(one, pattern, "mAP").get(first, 0.0) for place, one in started}


def choice(members: Sequence[Mapping[str, Any]], pattern: int) -> Mapping[str, Any] | None:
    """Of the rates of one family the one with the best mean mAP among those with the most seeds; None where all runs failed."""
    maps = [[*final_metric(one, pattern, "mAP").values()] for one in members]
    most = max(map(len, maps))
    means = [(mean(each), i) for i, each in enumerate(maps) if each and len(each) == most]
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
