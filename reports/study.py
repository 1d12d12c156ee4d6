"""Tables and plots of a study's result, the content of its study.json: means over seeds, and paired differences."""
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from string import ascii_letters
from typing import Any, NamedTuple

from matplotlib.lines import Line2D
from scipy import stats

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.extraction import CASES
from demo_sdtps.evaluation.tables import PATTERN_NAMES
from demo_sdtps.reports.figures import kind, name_points, np, plt, save
from demo_sdtps.reports.palette import PATTERNS, PLAIN, TEXT
from demo_sdtps.runtime.files import read_json

COMPLETE = next(iter(CASES))
CASE_GROUPS = {**{case: [case] for case in CASES}, "mean of the six": [case for case in CASES if case != COMPLETE]}
"""Columns of the results with modalities missing: the cases whose mean each one holds."""
METRICS = ("mAP", "Rank-1")
TIMES = ("inference", "training step")  # of `benchmarks.variants`
FIRST_STAGE = "stage 1"
CONFIDENCE, RESAMPLES = 0.95, 9999
LEGEND = ("Mean ± standard deviation over the seeds. Δ: paired difference to {first}, with its 95 % interval from a bootstrap "
          "over the seeds. Bold: 0 lies outside this interval and outside Student's; any other difference is within noise. Of "
          "twenty comparisons without a true difference, about one is bold by chance.")
SELECTION_LEGEND = ("{base_rate:.1f} % of all patches are on the person. AP: average precision of the score, and of each of "
                    "its terms alone, as a detector of the person; a random order has {random_order:.1f} %. Last column: mean "
                    "cosine between the global features (the guides) of two different images.")
SLIMMING_LEGEND = ("{base_rate:.1f} % of all patches are on the person. AP: average precision of the score as a detector of "
                   "the person; a random order has {random_order:.1f} %. Recall: share of the person's patches that are kept. "
                   "Precision: share of the kept patches that lie on the person. All three are means over the modalities.")


def read_result(path: Path) -> dict[str, Any]:
    """Content of a study.json. Raises `UserError` for another file."""
    result = read_json(path)
    if not isinstance(result, dict) or not {"variants", "patterns", "seeds", "title"} <= result.keys():
        raise UserError(f"{path} is no study.json of tools/study.py; give one, such as docs/results/slimming.json.")
    return result


CostPoint = tuple[float, float, float, str]
"""A variant's cost, mean and standard deviation of its mAP in percent, and the end of its name."""


class Difference(NamedTuple):
    """A paired difference over seeds: its mean, and the 95 % intervals (low, high) of two methods."""

    mean: float
    bootstrap: tuple[float, float]
    student: tuple[float, float]

    @property
    def is_beyond_noise(self) -> bool:
        """Whether both intervals exclude 0. The bootstrap's is too narrow for few seeds: for three it is their range."""
        return all(low > 0 or high < 0 for low, high in (self.bootstrap, self.student))


def paired_difference(values: dict[str, float], baseline: dict[str, float]) -> Difference | None:
    """values - baseline by seed, with intervals of the bootstrap (Efron 1979) and Student; None for fewer than two."""
    seeds = [seed for seed in values if seed in baseline]
    if len(seeds) < 2:
        return None
    pairs = [np.array([side[seed] for seed in seeds]) for side in (values, baseline)]
    differences = pairs[0] - pairs[1]
    resampled = stats.bootstrap((differences,), np.mean, confidence_level=CONFIDENCE, n_resamples=RESAMPLES,
                                method="percentile", rng=np.random.default_rng(0)).confidence_interval
    with warnings.catch_warnings():  # scipy warns when all differences are equal; their interval is a point
        warnings.simplefilter("ignore", RuntimeWarning)
        student = stats.ttest_rel(*pairs).confidence_interval(CONFIDENCE)
    return Difference(float(differences.mean()), *((float(found.low), float(found.high)) for found in (resampled, student)))


def final_metric(variant: dict[str, Any], pattern: int, metric: str) -> dict[str, float]:
    """A metric in percent after the last epoch, by seed, of the runs that finished."""
    return {seed: 100 * records[-1]["patterns"][str(pattern)][metric]
            for seed, records in variant["records"].items() if records and seed not in variant["failed"]}


def map_of_cases(variant: dict[str, Any], pattern: int, cases: Collection[str]) -> dict[str, float]:
    """mAP in percent by seed, mean over `cases` of missing modalities."""
    return {seed: 100 * float(np.mean([found[case][str(pattern)]["mAP"] for case in cases]))
            for seed, found in variant["missing"].items()}


def as_markdown(result: dict[str, Any]) -> str:
    """The report of a study: a table per return pattern, further measurements, costs, failed runs, versions and machine."""
    variants = result["variants"]
    parts = [f"`{result['command']}`"]
    for pattern in result["patterns"]:
        parts.append(f"Return pattern {PATTERN_NAMES[pattern]}, percent, last epoch:\n\n" + _pattern_table(result, pattern))
    parts.append(LEGEND.format(first=variants[0]["name"]))
    if any(variant["missing"] for variant in variants):
        parts += [f"mAP with modalities missing, return pattern {PATTERN_NAMES[pattern]}, percent:\n\n"
                  + _missing_table(result, pattern) for pattern in result["patterns"]]
    if any(variant.get("cross_modal_all") for variant in variants):
        parts += ["mAP of unequal sets of modalities of query and gallery, by the distance (docs/method.md), percent; with a "
                  f"common modality are 30 of the cells, without one 12:\n\n{_cross_modal_table(result)}"]
    for what, table, legend, rows_of in (
            ("Share of the kept patches that lie on the person, percent", _selection_table, SELECTION_LEGEND, _sdtps_rows),
            ("Patches kept by slimming, complete triplets, percent", _slimming_table, SLIMMING_LEGEND, _first_stage)):
        found = [one for variant in variants for one in variant["selection"].values() if rows_of(one)]
        if found:
            parts.append(f"{what}:\n\n{table(result)}")
            # These two depend only on the images and the patch grid, so they are equal for all variants.
            parts.append(legend.format(base_rate=100 * rows_of(found[0])[MODALITIES[0]]["base_rate"],
                                       random_order=100 * found[0]["random_order"]))
    parts.append(_cost_table(result))
    if failures := [f"- {variant['name']}, seed {seed}: {error}"
                    for variant in variants for seed, error in variant["failed"].items()]:
        parts.append("Failed runs, left out of every mean:\n\n" + "\n".join(failures))
    return "\n\n".join([*parts, _provenance(result)]) + "\n"


def _pattern_table(result: dict[str, Any], pattern: int) -> str:
    first, rows = result["variants"][0], []
    for variant in result["variants"]:
        finished = sum(seed not in variant["failed"] for seed, records in variant["records"].items() if records)
        row = [variant["name"], f"{finished} of {len(result['seeds'])}" if finished < len(result["seeds"]) else str(finished)]
        for metric in METRICS:
            values = final_metric(variant, pattern, metric)
            row += [_spread(values.values()),
                    *_difference(values, {} if variant is first else final_metric(first, pattern, metric))]
        rows.append(row)
    return _table(["variant", "seeds", *(header for m in METRICS for header in (m, f"Δ {m}", "Student's 95 %"))], rows)


def _missing_table(result: dict[str, Any], pattern: int) -> str:
    first, rows = result["variants"][0], []
    for variant in result["variants"]:
        values = [map_of_cases(variant, pattern, cases) for cases in CASE_GROUPS.values()]
        mean_of_first = {} if variant is first else map_of_cases(first, pattern, CASE_GROUPS["mean of the six"])
        rows.append([variant["name"], *(_spread(found.values()) for found in values), *_difference(values[-1], mean_of_first)])
    headers = ["complete" if name == COMPLETE else f"{name} missing" if name in CASES else name for name in CASE_GROUPS]
    return _table(["variant", *headers, "Δ of the mean", "Student's 95 %"], rows)


def _cross_modal_table(result: dict[str, Any]) -> str:
    groups = {"a common modality": ("all", "shared", "pairs"), "none": ("all", "pairs")}
    cells = {f"{how}, {group}": (how, group == "a common modality") for group, ways in groups.items() for how in ways}
    rows = []
    for variant in result["variants"]:
        found = [map_of_cells(variant, *which) for which in cells.values()]
        first = [map_of_cells(result["variants"][0], *which) for which in cells.values()]
        differences = [_difference(own, {} if variant is result["variants"][0] else other)[0]
                       for own, other in zip(found, first, strict=True)]
        rows.append([variant["name"], *(f"{_spread(own.values())}, {difference}".removesuffix(", ")
                                        for own, difference in zip(found, differences, strict=True))])
    return _table(["variant", *cells], rows)


def map_of_cells(variant: dict[str, Any], how: str, is_common: bool) -> dict[str, float]:
    """mAP in percent by seed, mean over the cells of unequal sets with, or without, a common modality."""
    return {seed: 100 * float(np.mean([value for own, row in matrices["mAP"].items() for other, value in row.items()
                                       if own != other and bool(set(own) & set(other)) is is_common]))
            for seed, matrices in variant[f"cross_modal_{how}"].items()}


def _sdtps_rows(measured: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The measures of SDTPS on complete triplets by modality; empty without one."""
    return measured["cases"].get(COMPLETE, {})


def _first_stage(measured: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Those of slimming's first stage."""
    return measured.get("stages", {}).get(FIRST_STAGE, {}).get(COMPLETE, {})


def _slimming_table(result: dict[str, Any]) -> str:
    """First stage, by day and night where that is known, and the recall of the last stage."""
    rows = []
    for variant in result["variants"]:
        measured = [found for found in variant["selection"].values() if _first_stage(found)]
        if not measured:
            continue
        row = [variant["name"]]
        for measure in ("score", "recall", "kept"):
            row.append(_spread(_mean(_first_stage(found), measure) for found in measured))
            if measure != "kept":
                row += [_spread(_mean(found["lights"][light][FIRST_STAGE], measure) for found in measured
                                if light in found["lights"]) for light in ("day", "night")]
        rows.append([*row, _spread(_mean(list(found["stages"].values())[-1][COMPLETE], "recall") for found in measured)])
    return _table(["variant", "AP at the first stage", "by day", "by night", "recall at the first stage", "by day", "by night",
                   "precision at the first stage", "recall at the last stage"], rows)


def _mean(by_modality: dict[str, dict[str, float]], measure: str) -> float:
    return 100 * float(np.mean([row[measure] for row in by_modality.values() if measure in row]))


def _selection_table(result: dict[str, Any]) -> str:
    rows = []
    for variant in result["variants"]:
        measured = [found for found in variant["selection"].values() if _sdtps_rows(found)]
        for modality in MODALITIES if measured else ():
            row = [variant["name"], modality]
            for name, missing in (("kept", 0), ("kept", 1), ("kept", 2), *((n, 0) for n in ("score", "MLP", *MODALITIES))):
                # A case holds the modalities that are present; the mean is over the cases with `missing` others absent.
                cases = [[case[modality] for case in found["cases"].values()
                          if modality in case and len(case) == len(MODALITIES) - missing] for found in measured]
                row.append(_spread(100 * float(np.mean([case[name] for case in values]))
                                   for values in cases if values and name in values[0]))
            rows.append([*row, _spread((found["mean_global_cosine"][modality] for found in measured), 3)])
    return _table(["variant", "modality", "kept", "kept, one other missing", "kept, both others missing", "AP score", "AP MLP",
                   *(f"AP guide {modality}" for modality in MODALITIES), "cosine of two global features"], rows)


def _cost_table(result: dict[str, Any]) -> str:
    rows, first = [], result["variants"][0]
    timed = [what for what in TIMES if what in first]
    for variant in result["variants"]:
        seconds = (made["seconds"] for seed, made in variant["made_with"].items()
                   if "seconds" in made and seed not in variant["failed"])
        # Recorded variants with a training script of their own have none.
        costs = (f"{variant['parameters']:,}", f"{variant['gmacs']:.3f}") if "gmacs" in variant else ("–", "–")
        times = (f"{variant[what] / first[what]:.2f}" for what in timed)
        rows.append([variant["name"], *costs, *times, _spread(seconds, 0)])
    return _table(["variant", "parameters", "GMACs", *(f"time of {what}" for what in timed), "seconds per run"], rows)


def _provenance(result: dict[str, Any]) -> str:
    runs = [made for variant in result["variants"] for made in variant["made_with"].values()
            if {"machine", "versions", "commit", "changed"} <= made.keys()]
    commits = sorted({(run["commit"] or "unknown")[:10] + (" with changes" if run["changed"] else "") for run in runs})
    machines = sorted({"{name} ({cpu}, threads: {threads})".format(**run["machine"]) for run in runs})
    versions = {name: "/".join(sorted({run["versions"][name] for run in runs if run["versions"].get(name)}))
                for name in (runs[0]["versions"] if runs else ())}
    parts = {"commit": " and ".join(commits), "machine": " and ".join(machines),
             "versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number)}
    return "Made with " + "; ".join(f"{name} {value}" for name, value in parts.items() if value) + "."


def _spread(values: Iterable[float], digits: int = 1) -> str:
    found = np.array(list(values))
    if not len(found):
        return "–"
    return f"{found.mean():.{digits}f}" + (f" ± {found.std(ddof=1):.{digits}f}" if len(found) > 1 else "")


def _difference(values: dict[str, float], baseline: dict[str, float]) -> tuple[str, str]:
    if not (found := paired_difference(values, baseline)):
        return "", ""
    emphasis = "**" if found.is_beyond_noise else ""
    bootstrap, student = (f"[{low:+.1f}, {high:+.1f}]" for low, high in (found.bootstrap, found.student))
    return f"{emphasis}{found.mean:+.1f}{emphasis} {bootstrap}", student


def _table(headers: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (headers, *rows)]
    return "\n".join([lines[0], "|---" * len(headers) + "|", *lines[1:]])


def draw_results(result: dict[str, Any], path: Path) -> None:
    """A panel per return pattern: the mAP of every run as a dot, of every variant as mean ± standard deviation."""
    variants, patterns = result["variants"], result["patterns"]
    size = 1.2 + 0.4 * len(variants) + 3.2 * len(patterns), 1.6 + 0.42 * len(variants)
    figure, axes = plt.subplots(1, len(patterns), figsize=size, sharex=True, sharey=True, squeeze=False,
                                layout="constrained")
    for axis, pattern in zip(axes[0], patterns, strict=True):
        for row, variant in enumerate(variants):
            values = list(final_metric(variant, pattern, "mAP").values())
            axis.scatter(values, np.full(len(values), row), s=16, alpha=0.7, color=PATTERNS[pattern])
            if values:
                axis.errorbar(np.mean(values), row, xerr=_deviation(values), color=TEXT, marker="|", markersize=16,
                              capsize=3)
                if row == 0:
                    axis.axvline(np.mean(values), color=PLAIN, linestyle=":", linewidth=1)
        axis.set(xlabel="mAP (%): runs, mean ± standard deviation", title=f"return pattern {PATTERN_NAMES[pattern]}")
    axes[0, 0].set_yticks(range(len(variants)), [variant["name"] for variant in variants])
    axes[0, 0].set_ylim(len(variants) - 0.5, -0.5)
    figure.suptitle(f"{result['title']} ({len(result['seeds'])} seeds)")
    save(figure, path)


def draw_costs(result: dict[str, Any], path: Path) -> None:
    """mAP of the last return pattern against GMACs: mean ± standard deviation of every variant that has both."""
    _draw_against(result, {"gmacs": "GMACs of one triplet"}, {"gmacs": 1.0}, path)


def draw_curves(result: dict[str, Any], path: Path) -> None:
    """mAP of the last return pattern against operations and times over those of the first variant."""
    first = result["variants"][0]
    names = {"gmacs": "operations"} | {what: f"time of {what}" for what in TIMES}
    _draw_against(result, {what: f"{name} over those of {first['name']}" for what, name in names.items()}, first, path)


def _draw_against(result: dict[str, Any], names: dict[str, str], units: Mapping[str, float], path: Path) -> None:
    """A panel for each cost of `names`, with a curve for the variants whose names agree up to the first comma; what their names
    say behind it is a letter beside the point."""
    figure, axes = plt.subplots(1, len(names), figsize=(4.5 * len(names) + 4.5, 5), sharey=True, squeeze=False,
                                layout="constrained")
    names_of = zip(*(variant["name"].partition(", ") for variant in result["variants"]), strict=True)
    families, _, settings = map(dict.fromkeys, names_of)
    letters = dict(zip(filter(None, settings), ascii_letters, strict=False))
    for axis, (what, name) in zip(axes[0], names.items(), strict=True):
        for family, points in _families(result, what, units).items():
            cost, mean, deviation, _ = zip(*points, strict=True)
            axis.errorbar(cost, mean, yerr=deviation, capsize=3, elinewidth=0.8, label=family,
                          **kind(list(families).index(family)))
        axis.set(xlabel=name, xlim=(0, 1.05 * axis.get_xlim()[1]))
    axes[0, 0].set_ylabel(f"mAP (%), return pattern {PATTERN_NAMES[result['patterns'][-1]]}")
    handles, labels = axes[0, -1].get_legend_handles_labels()
    axes[0, -1].legend([*handles, *(Line2D([], [], linestyle="") for _ in letters)],
                       [*labels, *(f"{letter}: {setting}" for setting, letter in letters.items())],
                       fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(f"{result['title']} ({len(result['seeds'])} seeds)")
    for axis, what in zip(axes[0], names, strict=True):
        named = [(*place, letters.get(setting, family)) for family, points in _families(result, what, units).items()
                 for *place, _, setting in points]
        if named:
            name_points(axis, np.array([place for *place, _ in named]), [name for *_, name in named], gap=8)
    save(figure, path)


def _families(result: dict[str, Any], what: str, units: Mapping[str, float]) -> dict[str, list[CostPoint]]:
    """The finished variants that have the cost `what`, by the beginnings of their names, ascending."""
    families: dict[str, list[CostPoint]] = {}
    for variant in result["variants"]:
        values = list(final_metric(variant, result["patterns"][-1], "mAP").values())
        if values and what in variant:
            family, _, setting = variant["name"].partition(", ")
            point = variant[what] / units[what], float(np.mean(values)), _deviation(values) or 0.0, setting
            families.setdefault(family, []).append(point)
    return {family: sorted(points) for family, points in families.items()}


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
