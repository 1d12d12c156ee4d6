"""Plots of a study's result, the content of study.json (tools/study_tables.py)."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo_sdtps.engine.evaluation.reports import PATTERN_NAMES
from demo_sdtps.tools.figures import np, plt, save
from demo_sdtps.tools.study_tables import CASE_GROUPS, COMPLETE, final_metric, map_of_cases


def draw_results(result: dict[str, Any], path: Path) -> Path:
    """A panel per return pattern: the mAP of every run as a dot, of every variant as mean ± standard deviation."""
    variants, patterns = result["variants"], result["patterns"]
    size = 1.2 + 0.4 * len(variants) + 3.2 * len(patterns), 1.6 + 0.42 * len(variants)
    figure, axes = plt.subplots(1, len(patterns), figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis, pattern in zip(axes[0], patterns, strict=True):
        for row, variant in enumerate(variants):
            values = np.array(list(final_metric(variant, pattern, "mAP").values()))
            if not len(values):
                continue
            axis.scatter(values, np.full(len(values), row), s=16, alpha=0.5, color="C0")
            axis.errorbar(values.mean(), row, xerr=values.std(ddof=1) if len(values) > 1 else None, color="black", marker="|",
                          markersize=16, capsize=3)
            if row == 0:
                axis.axvline(values.mean(), color="gray", linestyle=":", linewidth=1)
        axis.set(xlabel="mAP (%): runs, mean ± standard deviation", title=f"return pattern {PATTERN_NAMES[pattern]}")
        axis.grid(alpha=0.3, axis="x")
    axes[0, 0].set_yticks(range(len(variants)), [variant["name"] for variant in variants])
    axes[0, 0].set_ylim(len(variants) - 0.5, -0.5)
    return _finish(figure, result, path)


def draw_losses(result: dict[str, Any], path: Path) -> Path:
    """Training loss by epoch: a thin line per run, failed ones included, and a thick line for the mean of a variant."""
    figure, axis = plt.subplots(figsize=(7, 4.2))
    for index, variant in enumerate(result["variants"]):
        curves = {seed: {record["epoch"]: record["loss"] for record in records if "loss" in record}
                  for seed, records in variant["records"].items()}
        for seed, curve in curves.items():
            axis.plot(list(curve), list(curve.values()), color=f"C{index}", alpha=0.35, linewidth=1)
            if curve and seed in variant["failed"]:
                axis.plot(*list(curve.items())[-1], marker="x", markersize=10, color=f"C{index}")
        # Only epochs that all runs reach: the mean of the remaining runs would fall when one diverges and ends.
        epochs = sorted(set.intersection(*map(set, curves.values())))
        axis.plot(epochs, [np.mean([curve[epoch] for curve in curves.values()]) for epoch in epochs], color=f"C{index}",
                  linewidth=2, marker=".", label=variant["name"])
    has_failures = any(variant["failed"] for variant in result["variants"])
    axis.set(xlabel="epoch", ylabel="training loss" + (" (× where a run failed)" if has_failures else ""))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return _finish(figure, result, path)


def draw_costs(result: dict[str, Any], path: Path) -> Path:
    """mAP of the last return pattern against GMACs: mean ± standard deviation of every variant."""
    return draw_against([variant["gmacs"] for variant in result["variants"]], "GMACs of one triplet", result, path)


def draw_against(costs: Sequence[float], meaning: str, result: dict[str, Any], path: Path) -> Path:
    """mAP of the last return pattern, mean ± standard deviation, against a cost of every variant."""
    pattern = result["patterns"][-1]
    figure, axis = plt.subplots(figsize=(9, 5))
    for index, (variant, cost) in enumerate(zip(result["variants"], costs, strict=True)):
        values = list(final_metric(variant, pattern, "mAP").values())
        if values:
            spread = np.std(values, ddof=1) if len(values) > 1 else None
            axis.errorbar(cost, np.mean(values), yerr=spread, capsize=3, fmt="osD^v<>P"[index // 10],
                          color=f"C{index % 10}", label=variant["name"])
    axis.set(xlabel=meaning, ylabel=f"mAP (%), return pattern {PATTERN_NAMES[pattern]}", xlim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return _finish(figure, result, path)


def draw_missing(result: dict[str, Any], path: Path) -> Path:
    """A panel per return pattern: mAP of complete triplets, of each case of missing modalities, and the mean of the six."""
    measured = [variant for variant in result["variants"] if variant["missing"]]
    figure, axes = plt.subplots(1, len(result["patterns"]), figsize=(1 + 4.6 * len(result["patterns"]), 4.2), sharey=True,
                                squeeze=False)
    for axis, pattern in zip(axes[0], result["patterns"], strict=True):
        for index, variant in enumerate(measured):
            values = [list(map_of_cases(variant, pattern, cases).values()) for cases in CASE_GROUPS.values()]
            shift = 0.6 * ((index + 0.5) / len(measured) - 0.5)
            axis.errorbar(np.arange(len(values)) + shift, [np.mean(found) for found in values],
                          yerr=[np.std(found, ddof=1) if len(found) > 1 else 0 for found in values], fmt="o", markersize=4,
                          capsize=2, color=f"C{index}", label=variant["name"])
        names = ["complete" if name == COMPLETE else name.replace("of the", "of\nthe") for name in CASE_GROUPS]
        axis.set_xticks(range(len(names)), names)
        axis.set(xlabel="missing", title=f"return pattern {PATTERN_NAMES[pattern]}")
        axis.grid(alpha=0.3, axis="y")
    axes[0, 0].set_ylabel("mAP (%), mean ± standard deviation")
    axes[0, -1].legend(fontsize=8)
    return _finish(figure, result, path)


def _finish(figure: plt.Figure, result: dict[str, Any], path: Path) -> Path:
    figure.suptitle(f"{result['title']} ({len(result['seeds'])} seeds)")
    figure.tight_layout()
    return save(figure, path)
