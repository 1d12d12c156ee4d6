"""A study's result as images; see study_tables.py for what a result is."""
from pathlib import Path

from demo_sdtps.engine.evaluation.reports import PATTERN_NAMES
from demo_sdtps.tools.figures import np, plt, save
from demo_sdtps.tools.study_tables import COMPLETE, final, mean_of_six, of_case

COLOURS = plt.colormaps["tab10"].colors
METRIC = "mAP"


def draw_results(result: dict, path: Path) -> Path:
    """A panel per return pattern: every run's mAP as a dot, the mean of a variant as a bar with its standard deviation."""
    variants, patterns = result["variants"], result["patterns"]
    figure, axes = plt.subplots(1, len(patterns), figsize=(1.2 + 0.4 * len(variants) + 3.2 * len(patterns),
                                                           1.6 + 0.42 * len(variants)), sharex=True, sharey=True, squeeze=False)
    for axis, pattern in zip(axes[0], patterns, strict=True):
        for place, variant in enumerate(variants):
            values = np.array(list(final(variant, pattern, METRIC).values()))
            if not len(values):
                continue
            axis.scatter(values, np.full(len(values), place), s=16, alpha=0.5, color=COLOURS[0])
            axis.errorbar(values.mean(), place, xerr=values.std(ddof=1) if len(values) > 1 else None, color="black", marker="|",
                          markersize=16, capsize=3)
            if place == 0:
                axis.axvline(values.mean(), color="gray", linestyle=":", linewidth=1)
        axis.set(xlabel=f"{METRIC} (%): runs, mean ± standard deviation", title=f"return pattern {PATTERN_NAMES[pattern]}")
        axis.grid(alpha=0.3, axis="x")
    axes[0, 0].set_yticks(range(len(variants)), [variant["name"] for variant in variants])
    axes[0, 0].invert_yaxis()
    axes[0, 0].set_ylim(len(variants) - 0.5, -0.5)
    return _finish(figure, result, path)


def draw_losses(result: dict, path: Path) -> Path:
    """Training loss over the recorded epochs: a thin line per run, failed ones too, and their mean per variant."""
    figure, axis = plt.subplots(figsize=(7, 4.2))
    for place, variant in enumerate(result["variants"]):
        curves = [{record["epoch"]: record["loss"] for record in records if "loss" in record}
                  for records in variant["records"].values()]
        colour = COLOURS[place % len(COLOURS)]
        for curve in curves:
            axis.plot(list(curve), list(curve.values()), color=colour, alpha=0.35, linewidth=1)
        # Where all runs are: a mean of those that are left would fall when a run explodes and ends.
        epochs = sorted(set.intersection(*map(set, curves)))
        means = [np.mean([curve[epoch] for curve in curves]) for epoch in epochs]
        axis.plot(epochs, means, color=colour, linewidth=2, marker=".", label=variant["name"])
        for seed in variant["failed"]:
            last = variant["records"].get(seed) or []
            if last and "loss" in last[-1]:
                axis.plot(last[-1]["epoch"], last[-1]["loss"], marker="x", markersize=10, color=colour)
    has_failures = any(variant["failed"] for variant in result["variants"])
    axis.set(xlabel="epoch", ylabel="training loss" + (" (× where a run failed)" if has_failures else ""))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return _finish(figure, result, path)


def draw_missing(result: dict, path: Path) -> Path:
    """A panel per return pattern: mAP of complete triplets, of each case of missing modalities, and the mean of the six."""
    measured = [variant for variant in result["variants"] if variant["missing"]]
    figure, axes = plt.subplots(1, len(result["patterns"]), figsize=(1 + 4.6 * len(result["patterns"]), 4.2), sharey=True,
                                squeeze=False)
    for axis, pattern in zip(axes[0], result["patterns"], strict=True):
        for place, variant in enumerate(measured):
            cases = list(next(iter(variant["missing"].values())))
            values = [list(of_case(variant, case, pattern).values()) for case in cases]
            values.append(list(mean_of_six(variant, pattern).values()))
            shift = 0.6 * ((place + 0.5) / len(measured) - 0.5)
            axis.errorbar(np.arange(len(values)) + shift, [np.mean(found) for found in values],
                          yerr=[np.std(found, ddof=1) if len(found) > 1 else 0 for found in values], fmt="o", markersize=4,
                          capsize=2, color=COLOURS[place % len(COLOURS)], label=variant["name"])
            names = ["complete" if case == COMPLETE else case for case in cases]
            axis.set_xticks(range(len(values)), [*names, "mean of\nthe six"])
        axis.set(xlabel="missing", title=f"return pattern {PATTERN_NAMES[pattern]}")
        axis.grid(alpha=0.3, axis="y")
    axes[0, 0].set_ylabel(f"{METRIC} (%), mean ± standard deviation")
    axes[0, -1].legend(fontsize=8)
    return _finish(figure, result, path)


def _finish(figure: plt.Figure, result: dict, path: Path) -> Path:
    figure.suptitle(f"{result['title']} ({len(result['seeds'])} seeds)")
    figure.tight_layout()
    return save(figure, path)
