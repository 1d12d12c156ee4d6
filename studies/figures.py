"""Figures of docs/results.md: of a study's result its runs, costs, curves over training and learning rates; of public logs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo_sdtps.evaluation.tables import PATTERN_NAMES
from demo_sdtps.reports.figures import ink, kind, name_points, np, plt, save
from demo_sdtps.reports.palette import NEUTRAL, PATTERNS
from studies import public_logs
from studies.rates import choice, families
from studies.report import COSTS, TIMES, seed_count
from studies.results import final_metric

STEP = TIMES[1]


def _panels(count: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """A figure in inches, and its panels side by side, which share the axis of mAP or of the variants."""
    options |= {"sharey": True, "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(1, count, figsize=(width, height), **options)
    return figure, axes[0]


def _finish(figure: Any, axes: Any, title: str, label: str) -> None:
    """Title, the label of the axis of mAP, and the legend beside the panels."""
    figure.suptitle(title)
    axes[0].set_ylabel(label)
    axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _map_label(result: dict[str, Any]) -> str:
    return f"mAP (%), return pattern {PATTERN_NAMES[result['patterns'][-1]]}"


def draw_results(result: dict[str, Any], path: Path) -> None:
    """A panel per return pattern: the mAP of every run as a dot, of every variant as mean ± standard deviation."""
    variants, patterns = result["variants"], result["patterns"]
    width = 1.2 + 0.4 * len(variants) + 3.2 * len(patterns)
    figure, axes = _panels(len(patterns), width, 1.6 + 0.42 * len(variants), sharex=True)
    bar = {"color": ink(), "marker": "|", "markersize": 16, "capsize": 3}
    for axis, pattern in zip(axes, patterns, strict=True):
        for row, variant in enumerate(variants):
            values = list(final_metric(variant, pattern, "mAP").values())
            rows = np.full(len(values), row)
            axis.scatter(values, rows, s=16, alpha=0.7, color=PATTERNS[pattern])
            if values:
                axis.errorbar(np.mean(values), row, xerr=_deviation(values), **bar)
                if row == 0:
                    axis.axvline(np.mean(values), color=NEUTRAL, linestyle=":", linewidth=1)
        axis.set(
            xlabel="mAP (%): runs, mean ± standard deviation",
            title=f"return pattern {PATTERN_NAMES[pattern]}",
        )
    axes[0].set_yticks(range(len(variants)), [variant["name"] for variant in variants])
    axes[0].set_ylim(len(variants) - 0.5, -0.5)
    figure.suptitle(f"{result['title']}: mAP by return pattern ({seed_count(result)})")
    save(figure, path)


def draw_costs(result: dict[str, Any], path: Path) -> None:
    """mAP of the last return pattern against operations, and times where they were measured, over those of the first variant.

    A curve for the variants whose names agree up to the first comma; what their names say after it stands beside the point.
    """
    first = result["variants"][0]
    names = {what: f"{name}, {first['name']} = 1" for name, what in COSTS.items() if what in first}
    figure, axes = _panels(len(names), 4.5 * len(names) + 2, 5)
    families = list(dict.fromkeys(one["name"].partition(", ")[0] for one in result["variants"]))
    curves = {what: _curves(result, what) for what in names}
    for axis, what in zip(axes, names, strict=True):
        for family, points in curves[what].items():
            cost, mean, deviation, _ = zip(*points, strict=True)
            style = {"capsize": 3, "elinewidth": 0.8, **kind(families.index(family))}
            axis.errorbar(cost, mean, yerr=deviation, label=family, **style)
        axis.set(xlabel=names[what], xlim=(0, 1.05 * axis.get_xlim()[1]))
    title = (
        f"{result['title']}: accuracy against operations and time (mean ± standard deviation of "
    )
    _finish(figure, axes, f"{title}{seed_count(result)})", _map_label(result))
    for axis, what in zip(axes, names, strict=True):  # now that the limits are known
        ends = [
            (cost, mean, setting or family)
            for family, points in curves[what].items()
            for cost, mean, _, setting in points
        ]
        if ends:
            places = np.array([(cost, mean) for cost, mean, _ in ends])
            name_points(axis, places, [name for *_, name in ends], gap=8)
    save(figure, path)


def _curves(result: dict[str, Any], what: str) -> dict[str, list[tuple[float, float, float, str]]]:
    """The finished variants that have the cost `what`, by the beginnings of their names: cost, mean and standard deviation of
    the mAP in percent, and the end of the name; ascending."""
    curves: dict[str, list[tuple[float, float, float, str]]] = {}
    for variant in result["variants"]:
        values = list(final_metric(variant, result["patterns"][-1], "mAP").values())
        if values and what in variant:
            family, _, setting = variant["name"].partition(", ")
            cost = variant[what] / result["variants"][0][what]
            point = cost, float(np.mean(values)), _deviation(values) or 0.0, setting
            curves.setdefault(family, []).append(point)
    return {family: sorted(points) for family, points in curves.items()}


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def draw_rates(result: dict[str, Any], path: Path) -> None:
    """mAP of the last return pattern against the learning rate: every run as a dot, a line through the means of each variant,
    and a ring around the chosen rate."""
    pattern = result["patterns"][-1]
    figure, axes = _panels(1, 8, 5)
    for place, (family, members) in enumerate(families(result["variants"]).items()):
        if not (best := choice(members, pattern)):
            continue  # all its runs failed
        maps = {one["rate"]: list(final_metric(one, pattern, "mAP").values()) for one in members}
        points = [(rate, float(np.mean(values))) for rate, values in sorted(maps.items()) if values]
        style = kind(place)
        axes[0].plot(*zip(*points, strict=True), label=family, linewidth=1, **style)
        runs = [(rate, value) for rate, values in maps.items() for value in values]
        axes[0].scatter(*zip(*runs, strict=True), s=8, alpha=0.5, color=style["color"])
        ring = {"s": 140, "facecolors": "none", "edgecolors": style["color"]}
        axes[0].scatter(best["rate"], dict(points)[best["rate"]], **ring)
    rates = sorted({one["rate"] for one in result["variants"]})
    axes[0].set(xscale="log", xlabel="learning rate (SOLVER.BASE_LR)")
    axes[0].set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes[0].minorticks_off()
    title = f"{result['title']}: runs, means, and the chosen rate"
    _finish(figure, axes, title, _map_label(result))
    save(figure, path)


def draw_training(result: dict[str, Any], path: Path) -> None:
    """mAP during training against epochs, and against the time of training where it was measured; mean ± standard deviation."""
    first = result["variants"][0]
    costs = {"epoch": lambda one: 1.0}
    if STEP in first:
        name = f"time of training, an epoch of {first['name']} = 1"
        costs[name] = lambda one: one[STEP] / first[STEP]
    figure, axes = _panels(len(costs), 4.5 * len(costs) + 2, 5)
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
    _finish(figure, axes, title, _map_label(result))
    save(figure, path)


def draw_public_logs(content: dict[str, Any], path: Path) -> None:
    """A panel for the best and the last epoch: what SDTPS beside no other module gains, against the mAP without it.

    `content` is that of docs/public_logs.json.
    """
    families: dict[str, list[dict[str, Any]]] = {}
    for row in public_logs.alone(content):
        families.setdefault(f"{row['data']}, {public_logs.name(row)}", []).append(row)
    figure, axes = _panels(2, 11, 4, sharex=True)
    for axis, epoch in zip(axes, ("best", "last"), strict=True):
        for place, (family, rows) in enumerate(families.items()):
            off = [row["off"][epoch][1] for row in rows]
            gains = [row["on"][epoch][1] - without for row, without in zip(rows, off, strict=True)]
            axis.scatter(off, gains, s=30, alpha=0.8, label=family, **kind(place))
        axis.axhline(0, color=NEUTRAL, linestyle=":", linewidth=1)
        axis.set(title=f"{epoch} epoch", xlabel="mAP (%) without SDTPS")
    title = "SDTPS alone in public logs: each point a pair of single runs"
    _finish(figure, axes, title, "mAP with SDTPS − without")
    save(figure, path)
