"""Tables and plots of a study's result, the content of its study.json: means over seeds, and paired differences."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from scipy import stats

from demo_sdtps.config import UserError
from demo_sdtps.config.common import CROSS_MODAL_DISTANCES
from demo_sdtps.evaluation.extraction import CASES
from demo_sdtps.evaluation.selection import COMPLETE
from demo_sdtps.evaluation.tables import PATTERN_NAMES
from demo_sdtps.reports.figures import kind, name_points, np, plt, save
from demo_sdtps.reports.palette import PATTERNS, PLAIN, TEXT
from demo_sdtps.reports.rows import markdown_table
from demo_sdtps.runtime.files import read_json

INCOMPLETE = [case for case in CASES if case != COMPLETE]
TIMES = ("inference", "training step")  # of `training.timing.seconds_of`
COSTS = {"operations": "gmacs", **{f"time of {what}": what for what in TIMES}}
CONFIDENCE = 0.95
LEGEND = (
    "Percent, mean ± standard deviation over {seeds} seeds. Δ: paired difference to {first} with Student's 95 % "
    "interval; bold: it excludes 0. Operations and times: those of {first} are 1."
)


def read_result(path: Path) -> dict[str, Any]:
    """Content of a study.json."""
    result = read_json(path)
    if (
        not isinstance(result, dict)
        or not {"variants", "patterns", "seeds", "title"} <= result.keys()
    ):
        raise UserError(
            f"{path} is no study.json of tools/study.py; give one, such as docs/results/slimming.json."
        )
    return result


SeedValues = Callable[[dict[str, Any]], dict[str, float]]
"""A variant's values by seed."""
CostPoint = tuple[float, float, float, str]
"""A variant's cost, mean and standard deviation of its mAP in percent, and the end of its name."""


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
    reach = float(
        stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * variance**0.5 * np.std(values, ddof=1)
    )
    return mean, mean - reach, mean + reach


def final_metric(variant: dict[str, Any], pattern: int, metric: str) -> dict[str, float]:
    """A metric in percent after the last epoch, by seed, of the runs that finished."""
    return {
        seed: 100 * run["patterns"][str(pattern)][metric]
        for seed, run in variant["runs"].items()
        if "patterns" in run
    }


def map_of_cases(variant: dict[str, Any], pattern: int) -> dict[str, float]:
    """mAP in percent by seed, mean over the cases of missing modalities."""
    return {
        seed: 100 * float(np.mean([run["missing"][case][str(pattern)] for case in INCOMPLETE]))
        for seed, run in variant["runs"].items()
        if "missing" in run
    }


def study_markdown(result: dict[str, Any]) -> str:
    """Command, table, legend, failed runs, and what the runs were made with."""
    legend = LEGEND.format(seeds=len(result["seeds"]), first=result["variants"][0]["name"])
    failures = [
        f"- {variant['name']}, seed {seed}: {run['failed']}"
        for variant in result["variants"]
        for seed, run in variant["runs"].items()
        if "failed" in run
    ]
    sections = [f"`{result['command']}`", study_table(result), legend]
    sections += (
        ["Failed runs, left out of every mean:\n\n" + "\n".join(failures)] if failures else []
    )
    return "\n\n".join([*sections, _provenance(result)]) + "\n"


def study_table(result: dict[str, Any]) -> str:
    """A row per variant: what is there of mAP by return pattern, Rank-1, and what was measured besides."""
    first, last = result["variants"][0], result["patterns"][-1] if result["patterns"] else None
    columns: dict[str, list[str]] = {
        "variant": [_name_of(variant) for variant in result["variants"]]
    }

    def add(name: str, cells: Iterable[str]) -> None:
        cells_of_row = list(cells)
        if any(cell not in ("", "–") for cell in cells_of_row):
            columns[name] = cells_of_row

    def add_mean(name: str, values_of: SeedValues) -> list[dict[str, float]]:
        values = [values_of(variant) for variant in result["variants"]]
        add(name, (_spread(by_seed.values()) for by_seed in values))
        return values

    def add_comparison(name: str, values_of: SeedValues) -> None:
        baseline, *others = add_mean(name, values_of)
        add(f"Δ {name}", ["", *(_difference(by_seed, baseline) for by_seed in others)])

    for pattern in result["patterns"][:-1]:
        add_mean(
            f"mAP, {PATTERN_NAMES[pattern]}", partial(final_metric, pattern=pattern, metric="mAP")
        )
    if last:
        both = partial(final_metric, pattern=last)
        add_comparison(f"mAP, {PATTERN_NAMES[last]}", partial(both, metric="mAP"))
        add_mean("Rank-1", partial(both, metric="Rank-1"))
        if any(map_of_cases(variant, last) for variant in result["variants"]):
            add_comparison("mAP, modalities missing", partial(map_of_cases, pattern=last))
    for is_common, how in product((True, False), CROSS_MODAL_DISTANCES):
        if is_common or how != "shared":  # which then is undefined
            name = f"mAP, {'a common modality' if is_common else 'none in common'}, {how}"
            add_mean(name, partial(map_of_cells, how=how, is_common=is_common))
    add_mean("recall of the person", recall_of_person)
    for name, key in COSTS.items():
        add(
            name,
            (
                f"{variant[key] / first[key]:.2f}" if key in variant and key in first else "–"
                for variant in result["variants"]
            ),
        )
    return markdown_table(list(columns), list(zip(*columns.values(), strict=True)))


def recall_of_person(variant: dict[str, Any]) -> dict[str, float]:
    """Recall of the person's patches in percent, by seed."""
    return {seed: 100 * run["recall"] for seed, run in variant["runs"].items() if "recall" in run}


def map_of_cells(variant: dict[str, Any], how: str, is_common: bool) -> dict[str, float]:
    """mAP in percent by seed, mean over the cells of unequal sets with, or without, a common modality."""
    return {
        seed: 100
        * float(
            np.mean(
                [
                    value
                    for query, row in run[f"cross_modal_{how}"].items()
                    for gallery, value in row.items()
                    if query != gallery and bool(set(query) & set(gallery)) is is_common
                ]
            )
        )
        for seed, run in variant["runs"].items()
        if f"cross_modal_{how}" in run
    }


def _name_of(variant: dict[str, Any]) -> str:
    """The name of a variant, and the number of its runs where some failed."""
    failed = sum("failed" in run for run in variant["runs"].values())
    count = len(variant["runs"])
    return f"{variant['name']}{f' ({count - failed} of {count} runs)' if failed else ''}"


def _provenance(result: dict[str, Any]) -> str:
    runs = [
        run
        for variant in result["variants"]
        for run in variant["runs"].values()
        if "machine" in run
    ]
    tree = result.get("tree")  # of files that no change had; otherwise
    commits = sorted(
        {
            (run["commit"] or "unknown")[:10] + " with changes" * (run["changed"] and not tree)
            for run in runs
        }
    )
    machines = sorted(
        {"{name} ({cpu}, threads: {threads})".format(**run["machine"]) for run in runs}
    )
    versions = {
        name: "/".join(sorted({run["versions"][name] for run in runs if run["versions"].get(name)}))
        for name in (runs[0]["versions"] if runs else ())
    }
    facts = {
        "commit": " and ".join(commits),
        "files": (tree or "")[:10],
        "machine": " and ".join(machines),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
    }
    return (
        "Made with " + "; ".join(f"{name} {value}" for name, value in facts.items() if value) + "."
    )


def _spread(values: Iterable[float]) -> str:
    array = np.array(list(values))
    if not len(array):
        return "–"
    return f"{array.mean():.1f}" + (f" ± {array.std(ddof=1):.1f}" if len(array) > 1 else "")


def _difference(values: dict[str, float], baseline: dict[str, float]) -> str:
    if not (difference := paired_difference(values, baseline)):
        return ""
    mean, low, high = difference
    emphasis = "**" if low > 0 or high < 0 else ""
    return f"{emphasis}{mean:+.1f}{emphasis} [{low:+.1f}, {high:+.1f}]"


def draw_results(result: dict[str, Any], path: Path) -> None:
    """A panel per return pattern: the mAP of every run as a dot, of every variant as mean ± standard deviation."""
    variants, patterns = result["variants"], result["patterns"]
    size = 1.2 + 0.4 * len(variants) + 3.2 * len(patterns), 1.6 + 0.42 * len(variants)
    figure, axes = plt.subplots(
        1,
        len(patterns),
        figsize=size,
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, pattern in zip(axes[0], patterns, strict=True):
        for row, variant in enumerate(variants):
            values = list(final_metric(variant, pattern, "mAP").values())
            axis.scatter(
                values, np.full(len(values), row), s=16, alpha=0.7, color=PATTERNS[pattern]
            )
            if values:
                axis.errorbar(
                    np.mean(values),
                    row,
                    xerr=_deviation(values),
                    color=TEXT,
                    marker="|",
                    markersize=16,
                    capsize=3,
                )
                if row == 0:
                    axis.axvline(np.mean(values), color=PLAIN, linestyle=":", linewidth=1)
        axis.set(
            xlabel="mAP (%): runs, mean ± standard deviation",
            title=f"return pattern {PATTERN_NAMES[pattern]}",
        )
    axes[0, 0].set_yticks(range(len(variants)), [variant["name"] for variant in variants])
    axes[0, 0].set_ylim(len(variants) - 0.5, -0.5)
    figure.suptitle(f"{result['title']}: mAP by return pattern ({len(result['seeds'])} seeds)")
    save(figure, path)


def draw_costs(result: dict[str, Any], path: Path) -> None:
    """mAP of the last return pattern against operations, and times where they were measured, over those of the first variant.

    A curve for the variants whose names agree up to the first comma; what their names say after it stands beside the point.
    """
    first = result["variants"][0]
    names = {what: f"{name}, {first['name']} = 1" for name, what in COSTS.items() if what in first}
    figure, axes = plt.subplots(
        1,
        len(names),
        figsize=(4.5 * len(names) + 2, 5),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    families = list(
        dict.fromkeys(variant["name"].partition(", ")[0] for variant in result["variants"])
    )
    for axis, (what, name) in zip(axes[0], names.items(), strict=True):
        for family, points in _families(result, what).items():
            cost, mean, deviation, _ = zip(*points, strict=True)
            axis.errorbar(
                cost,
                mean,
                yerr=deviation,
                capsize=3,
                elinewidth=0.8,
                label=family,
                **kind(families.index(family)),
            )
        axis.set(xlabel=name, xlim=(0, 1.05 * axis.get_xlim()[1]))
    axes[0, 0].set_ylabel(f"mAP (%), return pattern {PATTERN_NAMES[result['patterns'][-1]]}")
    axes[0, -1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(
        f"{result['title']}: accuracy against operations and time (mean ± standard deviation of "
        f"{len(result['seeds'])} seeds)"
    )
    for axis, what in zip(axes[0], names, strict=True):
        named = [
            (cost, mean, setting or family)
            for family, points in _families(result, what).items()
            for cost, mean, _, setting in points
        ]
        if named:
            name_points(
                axis, np.array([place for *place, _ in named]), [name for *_, name in named], gap=8
            )
    save(figure, path)


def _families(result: dict[str, Any], what: str) -> dict[str, list[CostPoint]]:
    """The finished variants that have the cost `what`, by the beginnings of their names, ascending."""
    families: dict[str, list[CostPoint]] = {}
    for variant in result["variants"]:
        values = list(final_metric(variant, result["patterns"][-1], "mAP").values())
        if values and what in variant:
            family, _, setting = variant["name"].partition(", ")
            point = (
                variant[what] / result["variants"][0][what],
                float(np.mean(values)),
                _deviation(values) or 0.0,
                setting,
            )
            families.setdefault(family, []).append(point)
    return {family: sorted(points) for family, points in families.items()}


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
