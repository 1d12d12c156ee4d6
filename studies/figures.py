"""Figures of docs/results.md, of a study's result: accuracy against costs, and over the training."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from demo_sdtps.evaluation.tables import PATTERN_NAMES
from demo_sdtps.reports.figures import kind, np, plt, save
from studies.report import COSTS, final_metric, identity_difference, seed_count

UNTRAINED = " without training"


def _panels(count: int) -> tuple[Any, Any]:
    """A figure, and its panels side by side, which share the axis of mAP."""
    size = 4.5 * count + 2, 5
    options: dict[str, Any] = {"sharey": True, "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(1, count, figsize=size, **options)
    return figure, axes[0]


def _finish(figure: Any, axes: Any, result: dict[str, Any], title: str) -> None:
    """Title, the label of the axis of mAP, and the legend beside the panels."""
    figure.suptitle(title)
    axes[0].set_ylabel(f"mAP (%), return pattern {PATTERN_NAMES[result['patterns'][-1]]}")
    axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def draw_costs(result: dict[str, Any], path: Path) -> None:
    """mAP of the last return pattern against operations, and times where they were measured, over those of the first variant.

    A colour for the variants whose names agree up to the first comma, joined by a line where their operations differ; what the
    names say after it stands beside the point.
    """
    first = result["variants"][0]
    names = {what: f"{name}, {first['name']} = 1" for name, what in COSTS.items() if what in first}
    figure, axes = _panels(len(names))
    families = list(dict.fromkeys(one["name"].partition(", ")[0] for one in result["variants"]))
    curves = {what: _curves(result, what) for what in names}
    for axis, what in zip(axes, names, strict=True):
        for family, points in curves[what].items():
            cost, mean, deviation, _ = zip(*points, strict=True)
            style = {"capsize": 3, "elinewidth": 0.8, **kind(families.index(family))}
            if len({cost for cost, *_ in curves["gmacs"][family]}) == 1:
                style["linestyle"] = "none"
            axis.errorbar(cost, mean, yerr=deviation, label=family, **style)
        axis.set(xlabel=names[what], xlim=(0, 1.05 * axis.get_xlim()[1]))
    title = (
        f"{result['title']}: accuracy against operations and time (mean ± standard deviation of "
    )
    _finish(figure, axes, result, f"{title}{seed_count(result)})")
    for axis, what in zip(axes, names, strict=True):
        for family, points in curves[what].items():
            for x, y, _, setting in points:
                style = {"textcoords": "offset points", "fontsize": 7}
                axis.annotate(setting or family, (x, y), xytext=(5, 4), **style)
    save(figure, path)


def _curves(result: dict[str, Any], what: str) -> dict[str, list[tuple[float, float, float, str]]]:
    """The finished variants that have the cost `what`, by the beginnings of their names: cost, mean and standard deviation of
    the mAP in percent, and the end of the name; ascending."""
    curves: dict[str, list[tuple[float, float, float, str]]] = {}
    for variant in result["variants"]:
        values = list(final_metric(variant, result["patterns"][-1]).values())
        if values and what in variant:
            family, _, setting = variant["name"].partition(", ")
            cost = variant[what] / result["variants"][0][what]
            point = (
                cost,
                float(np.mean(values)),
                float(np.std(values, ddof=min(1, len(values) - 1))),
                setting,
            )
            curves.setdefault(family, []).append(point)
    return {family: sorted(points) for family, points in curves.items()}


def draw_differences(result: dict[str, Any], path: Path) -> None:
    """The difference of mAP to what a variant is compared with, with its interval over identities, against operations.

    A colour for the variants whose names agree up to the first comma, joined by a line; those without training
    are dashed and hollow.
    """
    rows = {row["name"]: row for row in result["variants"]}
    first, families = result["variants"][0], dict[str, list[tuple[float, ...]]]()
    for name, row in rows.items():
        family = name.partition(", ")[0]
        difference = identity_difference(row, rows[row.get("against", first["name"])])
        if difference and row["gmacs"] < first["gmacs"]:
            families.setdefault(family, []).append((row["gmacs"] / first["gmacs"], *difference))
    figure, (axis,) = _panels(1)
    methods = list(dict.fromkeys(family.removesuffix(UNTRAINED) for family in families))
    for family, points in families.items():
        share, mean, low, high = np.array(sorted(points)).T
        style = {"capsize": 3, "elinewidth": 0.8} | kind(
            methods.index(family.removesuffix(UNTRAINED))
        )
        if family.endswith(UNTRAINED):
            style |= {"linestyle": "--", "markerfacecolor": "none"}
        axis.errorbar(100 * share, mean, yerr=[mean - low, high - mean], label=family, **style)
    axis.axhline(0, linewidth=0.8, color="grey")
    axis.set_xlabel("operations, in percent of the dense model's")
    _finish(figure, (axis,), result, f"{result['title']}: what token pruning costs")
    axis.set_ylabel("difference of mAP to the dense model, 95 % interval")
    save(figure, path)


def dark() -> AbstractContextManager:
    """Figures made in it are for dark pages: light text, and nothing behind."""
    style: dict[Any, Any] = {**plt.style.library["dark_background"], "savefig.transparent": True}
    return plt.rc_context(style | {"axes.prop_cycle": plt.rcParams["axes.prop_cycle"]})
