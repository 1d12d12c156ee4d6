"""Figures of docs/results.md, of a study's result: accuracy against costs, and over the training."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from demo_sdtps.evaluation.tables import PATTERN_NAMES
from demo_sdtps.reports.figures import kind, np, plt, save
from studies.report import COSTS, TIMES, final_metric, seed_count

STEP = TIMES[1]


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


def draw_training(result: dict[str, Any], path: Path) -> None:
    """mAP during training against epochs, and against the time of training where it was measured; mean ± standard deviation."""
    first = result["variants"][0]
    costs = {"epoch": lambda one: 1.0}
    if STEP in first:
        name = f"time of training, an epoch of {first['name']} = 1"
        costs[name] = lambda one: one[STEP] / first[STEP]
    figure, axes = _panels(len(costs))
    for axis, (name, cost) in zip(axes, costs.items(), strict=True):
        for place, one in enumerate(result["variants"]):
            curves = [run["curve"] for run in one["runs"].values() if "curve" in run]
            if not curves:  # all runs failed
                continue
            epochs = np.array([int(epoch) for epoch in curves[0]])
            maps = 100 * np.array([list(curve.values()) for curve in curves])
            mean, spread = maps.mean(axis=0), maps.std(axis=0, ddof=min(1, len(maps) - 1))
            axis.plot(epochs * cost(one), mean, label=one["name"], markersize=4, **kind(place))
            band = {"color": kind(place)["color"], "alpha": 0.15, "linewidth": 0}
            axis.fill_between(epochs * cost(one), mean - spread, mean + spread, **band)
        axis.set(xlabel=name)
        axis.set_xlim(left=0)
    title = f"{result['title']}: mean ± standard deviation of {seed_count(result)}"
    _finish(figure, axes, result, title)
    save(figure, path)


def dark() -> AbstractContextManager:
    """Figures made in it are for dark pages: light text, and nothing behind."""
    style: dict[Any, Any] = {**plt.style.library["dark_background"], "savefig.transparent": True}
    return plt.rc_context(style | {"axes.prop_cycle": plt.rcParams["axes.prop_cycle"]})
