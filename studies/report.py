"""The result of a study, a JSON file: the figures of its runs, the choice of learning rates by them, and its tables: means over
seeds, and differences paired by seed."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.protocol import CASES
from demo_sdtps.evaluation.tables import PATTERN_NAMES, markdown_table
from demo_sdtps.runtime.files import read_json

INCOMPLETE = [case for case, missing in CASES.items() if missing]
FINALISTS = 3
BOOTSTRAP = 10_000  # draws of identities
TIMES = ("inference", "training step")  # of results of earlier versions
COSTS = {"operations": "gmacs", **{f"time of {what}": what for what in TIMES}}
SIMILARITIES = {"tokens": "cosine of the tokens of an image", "images": "cosine of two images"}
CROSS_MODAL = "cross_modal_"

Result = Mapping[str, Any]
Row = Mapping[str, Any]
"""A variant of a result: what it is, its costs, and its "runs" by seed."""
BySeed = dict[str, float]


def read_result(path: Path) -> dict[str, Any]:
    """The result of a study at `path`, such as docs/results/persons.json."""
    result = read_json(path, {"title": str, "version": str, "patterns": [int], "variants": list})
    if result is None:
        raise UserError(f"{path} is no result of a study; give another --json.")
    return result


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


def values_by_seed(row: Row, key: str, value_of: Callable[[Any], float]) -> BySeed:
    """In percent what `value_of` says of the entry `key` of each run that has one."""
    return {seed: 100 * value_of(run[key]) for seed, run in row["runs"].items() if key in run}


def final_metric(row: Row, pattern: int, metric: str = "mAP") -> BySeed:
    """A metric in percent after the last epoch, by seed, of the runs that finished."""
    return values_by_seed(row, "patterns", lambda patterns: patterns[str(pattern)][metric])


def missing_maps(row: Row, pattern: int) -> BySeed:
    """mAP in percent by seed, mean over the cases of missing modalities."""

    def mean_case(cases: Mapping[str, Mapping[str, float]]) -> float:
        return float(np.mean([cases[case][str(pattern)] for case in INCOMPLETE]))

    return values_by_seed(row, "missing", mean_case)


def cross_modal_maps(row: Row, key: str, is_common: bool) -> BySeed:
    """mAP in percent by seed, mean over the cells of unequal sets with, or without, a common modality, of the measurement
    `key`."""

    def mean_cell(matrix: Mapping[str, Mapping[str, float]]) -> float:
        cells = [
            value
            for query, values in matrix.items()
            for gallery, value in values.items()
            if query != gallery and bool({*query} & {*gallery}) is is_common
        ]
        return float(np.mean(cells))

    return values_by_seed(row, key, mean_cell)


def next_rates(rows: Iterable[Row], pattern: int) -> list[str]:
    """The names of the variants of a result that are to be run next with the first seed: in each family the middle of the grid
    and its neighbours, then the neighbours of the best so far, until these are there."""
    names = []
    for members in families(rows).values():
        maps = first_maps(members, pattern)
        middle = len(members) // 2
        around: set[int] = set()
        for best in (middle, max(maps, key=maps.__getitem__, default=middle)):
            around |= {*range(max(0, best - 1), min(len(members), best + 2))}
        names += [str(members[place]["name"]) for place in sorted(around - maps.keys())]
    return names


def finalists(rows: Iterable[Row], pattern: int) -> list[str]:
    """The names of the variants of a result that have one of the FINALISTS best mAPs of their family with the first seed."""
    names = []
    for members in families(rows).values():
        maps = first_maps(members, pattern)
        ranked = sorted(maps, key=maps.__getitem__)
        names += [str(members[place]["name"]) for place in ranked[-FINALISTS:]]
    return names


def first_maps(members: Sequence[Row], pattern: int) -> dict[int, float]:
    """mAP with the first seed of the members of a family that have a run, by place in the family; 0 of a run that failed."""
    first = min((seed for one in members for seed in one["runs"]), key=int, default="")
    started = ((place, one) for place, one in enumerate(members) if one["runs"])
    return {place: final_metric(one, pattern).get(first, 0.0) for place, one in started}


def choice(members: Sequence[Row], pattern: int) -> Row | None:
    """Of the rates of one family the one with the best mean mAP among those with the most seeds; None where all runs failed."""
    maps = [[*final_metric(one, pattern).values()] for one in members]
    most = max(map(len, maps))
    means = [(np.mean(each), i) for i, each in enumerate(maps) if each and len(each) == most]
    return members[max(means)[1]] if means else None


def families(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The variants of a result with a grid, by what was tuned, in order."""
    by_family: dict[str, list[Row]] = {}
    for row in rows:
        by_family.setdefault(row["family"], []).append(row)
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


def paired_difference(values: BySeed, baseline: BySeed) -> tuple[float, float, float] | None:
    """The mean of values - baseline by seed, and Student's 95 % interval (low, high) of it; None for fewer than two."""
    pairs = [value - baseline[seed] for seed, value in values.items() if seed in baseline]
    return interval(pairs, 1 / len(pairs)) if len(pairs) > 1 else None


def interval(values: Sequence[float], variance: float) -> tuple[float, float, float]:
    """The mean of normally distributed values, and Student's 95 % interval around it of a number with `variance` times that of
    the values: 1 / n for their mean, 1 + 1 / n for a further value."""
    mean = float(np.mean(values))
    quantile, deviation = stats.t.ppf(0.975, len(values) - 1), np.std(values, ddof=1)
    reach = float(quantile * variance**0.5 * deviation)
    return mean, mean - reach, mean + reach


def difference_text(difference: tuple[float, float, float] | None) -> str:
    """A mean difference and its interval, bold where that excludes 0."""
    if not difference:
        return ""
    mean, low, high = difference
    emphasis = "**" if low > 0 or high < 0 else ""
    return f"{emphasis}{mean:+.1f}{emphasis} [{low:+.1f}, {high:+.1f}]"


def identity_difference(row: Row, baseline: Row) -> tuple[float, float, float] | None:
    """The mean difference in percent of the average precision of the queries of both rows' runs, and its 95 % interval by a
    bootstrap over their identities; None where none was measured."""
    sums: dict[str, np.ndarray] = {}
    for seed, run in row["runs"].items():
        before = baseline["runs"].get(seed, {}).get("identities", {})
        for identity, (precision, count) in run.get("identities", {}).items() if before else ():
            gain = (precision - before[identity][0]) * count
            sums[identity] = sums.get(identity, 0) + np.array([gain, count])
    if not sums:
        return None
    gains = np.stack([*sums.values()])
    draws = np.random.default_rng(0).integers(len(gains), size=(BOOTSTRAP, len(gains)))
    totals = gains[draws].sum(axis=1)
    ratios = 100 * totals[:, 0] / totals[:, 1]
    mean = 100 * gains[:, 0].sum() / gains[:, 1].sum()
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(mean), float(low), float(high)


def seed_count(result: Result) -> str:
    """The number of seeds of the variants: 1 seed, 5 seeds, 5 to 20 seeds."""
    counts = sorted({len(row["runs"]) for row in result["variants"]})
    numbers = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    return f"{numbers} seed{'' if numbers == '1' else 's'}"


def study_markdown(result: Result) -> str:
    """`study_table`, and the failed runs."""
    failures = [
        f"- {row['name']}, seed {seed}: {run['failed']}"
        for row in result["variants"]
        for seed, run in row["runs"].items()
        if "failed" in run
    ]
    sections = [markdown_table(*study_table(result))]
    if failures:
        sections.append("Failed runs, left out of every mean:\n\n" + "\n".join(failures))
    return "\n\n".join(sections)


class Table(NamedTuple):
    """A table of texts."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


def spread(values: Iterable[float]) -> str:
    """The mean, and the standard deviation of several."""
    array = np.array(list(values))
    if not len(array):
        return "–"
    return f"{array.mean():.1f}" + (f" ± {array.std(ddof=1):.1f}" if len(array) > 1 else "")


def study_table(result: Result) -> Table:
    """What the result of a study is shown as: rates, or variants."""
    return (rates_table if "family" in result["variants"][0] else variants_table)(result)


def variants_table(result: Result) -> Table:
    """A row per variant: what is there of mAP by return pattern, Rank-1, and what was measured besides."""
    rows, last = result["variants"], result["patterns"][-1]
    names = [row["name"] for row in rows]
    compared = [row.get("against", names[0]) for row in rows]
    columns = {"variant": names}
    if any("rate" in row for row in rows):
        columns["rate"] = [f"{row['rate']:g}" for row in rows]
    if any("against" in row for row in rows):
        columns["Δ to"] = ["", *compared[1:]]
    counts = [str(len(row["runs"])) for row in rows]
    if {*counts} != {"5"}:  # what the pages take for granted
        columns["seeds"] = counts

    def compare(entries: Sequence[Any], difference: Callable[[Any, Any], Any]) -> list[Any]:
        """The differences of the rows but the first to what they are compared with, None where that is not there."""
        by_name = dict(zip(names, entries, strict=True))
        pairs = zip(entries[1:], compared[1:], strict=True)
        return [
            difference(one, by_name[other]) if other in by_name else None for one, other in pairs
        ]

    def add(name: str, values: list[BySeed], differences: Sequence[Any] = ()) -> None:
        if any(values):
            columns[name] = [spread(by_seed.values()) for by_seed in values]
        if any(differences):
            columns[f"Δ {name}"] = ["", *map(difference_text, differences)]

    by_identity = compare(rows, identity_difference)
    for pattern in result["patterns"]:
        values = [final_metric(row, pattern) for row in rows]
        by_seed = compare(values, paired_difference)
        differences = by_identity if any(by_identity) else by_seed
        add(f"mAP, {PATTERN_NAMES[pattern]}", values, differences if pattern == last else ())
    columns["lowest"] = [f"{min(maps.values()):.1f}" if maps else "–" for maps in values]
    add("Rank-1", [final_metric(row, last, "Rank-1") for row in rows])
    values = [missing_maps(row, last) for row in rows]
    add("mAP, modalities missing", values, compare(values, paired_difference))
    keys = dict.fromkeys(key for row in rows for run in row["runs"].values() for key in run)
    for is_common, name in ((True, "a common modality"), (False, "none in common")):
        for key in filter(lambda key: key.startswith(CROSS_MODAL), keys):
            how = key.removeprefix(CROSS_MODAL)
            if is_common or how != "shared":  # which then is undefined
                values = [cross_modal_maps(row, key, is_common) for row in rows]
                add(f"mAP, {name}, {how}", values)
    for what, name in SIMILARITIES.items():
        add(name, [values_by_seed(row, "similarity", itemgetter(what)) for row in rows])
    for name, key in COSTS.items():
        if key in rows[0]:
            columns[name] = [f"{r[key] / rows[0][key]:.2f}" if key in r else "–" for r in rows]
    return Table(list(columns), list(zip(*columns.values(), strict=True)))


def rates_table(result: Result) -> Table:
    """A row per variant, a column per learning rate; the chosen one is bold."""
    rates, pattern = sorted({one["rate"] for one in result["variants"]}), result["patterns"][-1]
    rows = []
    for family, members in families(result["variants"]).items():
        maps = {one["rate"]: final_metric(one, pattern).values() for one in members}
        cells = {rate: f"{np.mean([*maps[rate]]):.1f}" if maps.get(rate) else "–" for rate in rates}
        if best := choice(members, pattern):
            cells[best["rate"]] = f"**{cells[best['rate']]}**"
        rows.append([family, *cells.values()])
    return Table(["variant", *(f"{rate:g}" for rate in rates)], rows)
