"""Tables of a study's result: means over seeds, and paired differences."""

from collections.abc import Sequence
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
from scipy import stats

from demo_sdtps.config.common import CROSS_MODAL_DISTANCES
from demo_sdtps.evaluation.tables import PATTERN_NAMES, Table, markdown_table, spread
from studies import results

TIMES = ("inference", "training step")  # of `benchmarks.timing.time_variants`
COSTS = {"operations": "gmacs", **{f"time of {what}": what for what in TIMES}}
SIMILARITIES = {"tokens": "cosine of the tokens of an image", "images": "cosine of two images"}
CHOICE = "mAP in percent, {pattern}; bold: the chosen rate."
LEGEND = "Percent over {seeds}; operations, times and Δ, with its 95 % interval: relative to {first}, or as named."
CALIBRATED = (
    "Percent over {seeds} of ten splits of identities. Error: expected calibration error; false and true: accepted pairs of "
    "different identities and of one, by a threshold for 1 %."
)

LOST_DISTANCE = "pairs"
"""A value of TEST.CROSS_MODAL_DISTANCE until it lost, of which docs/results has figures."""


def paired_difference(
    values: dict[str, float], baseline: dict[str, float]
) -> tuple[float, float, float] | None:
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


def seed_count(result: dict[str, Any]) -> str:
    """The number of seeds of the variants: 1 seed, 5 seeds, 5 to 20 seeds."""
    counts = sorted({len(variant["runs"]) for variant in result["variants"]})
    numbers = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    return f"{numbers} seed{'' if numbers == '1' else 's'}"


def result_table(result: dict[str, Any]) -> Table:
    """What the result of a study is shown as: rates, calibrations, or variants."""
    first = result["variants"][0]
    if "family" in first:
        return rates_table(result)
    is_calibrated = any("calibration" in run for run in first["runs"].values())
    return calibration_table(result) if is_calibrated else study_table(result)


def study_markdown(result: dict[str, Any]) -> str:
    """`result_table`, and the failed runs."""
    failures = [
        f"- {variant['name']}, seed {seed}: {run['failed']}"
        for variant in result["variants"]
        for seed, run in variant["runs"].items()
        if "failed" in run
    ]
    sections = [markdown_table(*result_table(result))]
    if failures:
        sections.append("Failed runs, left out of every mean:\n\n" + "\n".join(failures))
    return "\n\n".join(sections)


def legend(result: dict[str, Any]) -> str:
    """What the cells of `result_table` are."""
    first, seeds = result["variants"][0], seed_count(result)
    if "family" in first:
        return CHOICE.format(pattern=PATTERN_NAMES[result["patterns"][-1]])
    if result_table(result).headers[1] == "pairs":
        return CALIBRATED.format(seeds=seeds)
    return LEGEND.format(seeds=seeds, first=first["name"])


def study_table(result: dict[str, Any]) -> Table:
    """A row per variant: what is there of mAP by return pattern, Rank-1, and what was measured besides."""
    variants, last = result["variants"], result["patterns"][-1]
    names = [variant["name"] for variant in variants]
    compared = [variant.get("against", names[0]) for variant in variants]
    columns = {"variant": [_label(variant) for variant in variants]}
    if any("rate" in variant for variant in variants):
        columns["rate"] = [f"{variant['rate']:g}" for variant in variants]
    if any("against" in variant for variant in variants):
        columns["Δ to"] = ["", *compared[1:]]
    counts = [str(len(variant["runs"])) for variant in variants]
    if len(set(counts)) > 1:
        columns["seeds"] = counts

    def add(name: str, values: list[dict[str, float]], is_compared: bool = False) -> None:
        if any(values):
            columns[name] = [spread(by_seed.values()) for by_seed in values]
        by_name = dict(zip(names, values, strict=True))
        pairs = zip(values[1:], compared[1:], strict=True)
        differences = [difference_text(by_seed, by_name.get(other, {})) for by_seed, other in pairs]
        if is_compared and any(differences):
            columns[f"Δ {name}"] = ["", *differences]

    for pattern in result["patterns"]:
        values = [results.final_metric(variant, pattern, "mAP") for variant in variants]
        add(f"mAP, {PATTERN_NAMES[pattern]}", values, is_compared=pattern == last)
    columns["lowest"] = [f"{min(maps.values()):.1f}" if maps else "–" for maps in values]
    add("Rank-1", [results.final_metric(variant, last, "Rank-1") for variant in variants])
    values = [results.missing_maps(variant, last) for variant in variants]
    add("mAP, modalities missing", values, is_compared=True)
    for is_common, how in product((True, False), (*CROSS_MODAL_DISTANCES, LOST_DISTANCE)):
        if is_common or how != "shared":  # which then is undefined
            values = [results.cross_modal_maps(variant, how, is_common) for variant in variants]
            add(f"mAP, {'a common modality' if is_common else 'none in common'}, {how}", values)
    for what, name in SIMILARITIES.items():
        add(name, [results.values_by_seed(one, "similarity", itemgetter(what)) for one in variants])
    for name, key in COSTS.items():
        if key in variants[0]:
            dense = variants[0][key]
            columns[name] = [f"{one[key] / dense:.2f}" if key in one else "–" for one in variants]
    if all("dense" in variant for variant in variants):
        shares = [one["gmacs"] / one["dense"] for one in variants]
        relative = [one["gmacs"] / variants[0]["gmacs"] for one in variants]
        if max(map(abs, np.subtract(shares, relative))) > 0.005:
            columns["of the dense model"] = [f"{share:.0%}" for share in shares]
    return Table(list(columns), list(zip(*columns.values(), strict=True)))


def calibration_table(result: dict[str, Any]) -> Table:
    """A row per variant and kind of pairs of triplets."""
    rows, titles = [], []
    for variant in result["variants"]:
        entries = [run["calibration"] for run in variant["runs"].values() if "calibration" in run]
        for kind, titles in entries[0].items() if entries else ():
            values = ([100 * entry[kind][what] for entry in entries] for what in titles)
            rows.append([variant["name"], kind, *map(spread, values)])
    return Table(["variant", "pairs", *titles], rows)


def rates_table(result: dict[str, Any]) -> Table:
    """A row per variant, a column per learning rate."""
    rates, pattern = sorted({one["rate"] for one in result["variants"]}), result["patterns"][-1]
    rows = []
    for family, members in results.families(result["variants"]).items():
        maps = {one["rate"]: results.final_metric(one, pattern, "mAP").values() for one in members}
        cells = {rate: f"{np.mean([*maps[rate]]):.1f}" if maps.get(rate) else "–" for rate in rates}
        if best := results.choice(members, pattern):
            cells[best["rate"]] = f"**{cells[best['rate']]}**"
        rows.append([family, *cells.values()])
    return Table(["variant", *(f"{rate:g}" for rate in rates)], rows)


def _label(variant: dict[str, Any]) -> str:
    """The name of a variant, and the number of its runs where some failed."""
    failed = sum("failed" in run for run in variant["runs"].values())
    count = len(variant["runs"])
    return f"{variant['name']}{f' ({count - failed} of {count} runs)' if failed else ''}"


def difference_text(values: dict[str, float], baseline: dict[str, float]) -> str:
    """The mean difference of paired values and its interval, bold where that excludes 0."""
    if not (difference := paired_difference(values, baseline)):
        return ""
    mean, low, high = difference
    emphasis = "**" if low > 0 or high < 0 else ""
    return f"{emphasis}{mean:+.1f}{emphasis} [{low:+.1f}, {high:+.1f}]"
