"""The result of a study: means, paired differences and their intervals, what is compared with what; the choice of rates."""

import json
import random
import statistics

import pytest
from study_files import table_rows

from studies.report import (
    chosen_rates,
    finalists,
    next_rates,
    paired_difference,
    study_markdown,
)
from tests.reference import statistics as reference


@pytest.mark.parametrize("count", [3, 5])
def test_intervals_like_the_slow_ones(count):
    draw = random.Random(0)
    first = {str(number): draw.gauss(50, 2) for number in range(count)}
    values = {name: value + draw.gauss(1, 1.5) for name, value in first.items()}
    differences = [values[name] - first[name] for name in first]
    mean, *limits = paired_difference(values | {"of one alone": 3.0}, first)
    assert mean == pytest.approx(statistics.mean(differences))
    spread = max(differences) - min(differences)
    assert limits == [
        pytest.approx(bound, abs=1e-3 * spread) for bound in reference.student(differences)
    ]
    assert paired_difference({"0": 13.0}, first) is None


def draw_variant(draw, name, seeds=("1", "2", "3")):
    """A variant with random measurements."""
    sets = ("R", "N", "T", "RN", "RT", "NT", "RNT")
    cases = ("nothing", "r", "n", "t", "rn", "rt", "nt")

    def scores():
        return {
            str(pattern): {"mAP": draw.random(), "Rank-1": draw.random()} for pattern in (1, 2, 3)
        }

    def run():
        return {
            "patterns": scores(),
            "missing": {case: {pattern: draw.random() for pattern in "123"} for case in cases},
            "similarity": {"tokens": draw.random(), "images": draw.random()},
            **{
                f"cross_modal_{how}": {row: {to: draw.random() for to in sets} for row in sets}
                for how in ("all", "shared", "pairs")
            },
        }

    costs = {what: draw.random() for what in ("gmacs", "inference", "training step")}
    return {"name": name, **costs, "runs": {seed: run() for seed in seeds}}


def test_the_table_is_that_of_the_measurements():
    draw = random.Random(1)
    first, other = (draw_variant(draw, name) for name in ("dense", "slim"))
    actual = table_rows(study_markdown({"patterns": [1, 3], "variants": [first, other]}))

    def spread(values):
        return f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"

    def with_common(matrix, is_common):
        return statistics.mean(
            matrix[source][to]
            for source in matrix
            for to in matrix
            if source != to and any(letter in to for letter in source) == is_common
        )

    for variant in (first, other):
        row, runs = actual[variant["name"]], variant["runs"].values()
        last = [run["patterns"] for run in runs]
        assert row["mAP, 1 original"] == spread([scores["1"]["mAP"] for scores in last])
        assert row["mAP, 3 both"] == spread([scores["3"]["mAP"] for scores in last])
        assert row["lowest"] == f"{100 * min(scores['3']['mAP'] for scores in last):.1f}"
        assert row["Rank-1"] == spread([scores["3"]["Rank-1"] for scores in last])
        six = ("r", "n", "t", "rn", "rt", "nt")
        assert row["mAP, modalities missing"] == spread(
            [statistics.mean(run["missing"][case]["3"] for case in six) for run in runs]
        )
        for how in ("all", "shared"):
            for is_common, name in ((True, "a common modality"), (False, "none in common")):
                if is_common or how != "shared":
                    assert row[f"mAP, {name}, {how}"] == spread(
                        [with_common(run[f"cross_modal_{how}"], is_common) for run in runs]
                    )
        for what, name in (("tokens", "the tokens of an image"), ("images", "two images")):
            assert row[f"cosine of {name}"] == spread([run["similarity"][what] for run in runs])
        assert row["operations"] == f"{variant['gmacs'] / first['gmacs']:.2f}"
        assert row["time of inference"] == f"{variant['inference'] / first['inference']:.2f}"
    maps, others = (
        [100 * run["patterns"]["3"]["mAP"] for run in variant["runs"].values()]
        for variant in (first, other)
    )
    gain = [value - baseline for value, baseline in zip(others, maps, strict=True)]
    low, high = reference.student(gain)
    cell = f"{statistics.mean(gain):+.1f} [{low:+.1f}, {high:+.1f}]"
    assert actual["slim"]["Δ mAP, 3 both"] == cell
    assert not actual["dense"]["Δ mAP, 3 both"]


def test_a_variant_is_compared_with_the_one_it_names():
    """The others with the first; nothing is compared with what has no run yet."""
    draw = random.Random(2)
    names = ("dense", "longer", "slim", "taught", "both", "other")
    variants = {name: draw_variant(draw, name) for name in names}
    against = {"taught": "longer", "both": "longer", "other": "slim"}
    for name, baseline in against.items():
        variants[name]["against"] = baseline
    result = {"patterns": [3], "variants": [*variants.values()]}

    def mean(name):
        runs = variants[name]["runs"].values()
        return statistics.mean(100 * run["patterns"]["3"]["mAP"] for run in runs)

    rows = table_rows(study_markdown(result))
    means = {
        name: row["Δ mAP, 3 both"].strip("*").partition(" ")[0].strip("*")
        for name, row in rows.items()
    }
    pairs = {"longer": "dense", "slim": "dense"} | against
    gains = {name: f"{mean(name) - mean(other):+.1f}" for name, other in pairs.items()}
    assert means == {"dense": ""} | gains and len({*gains.values()}) == len(gains)
    assert {name: row["Δ to"] for name, row in rows.items()} == {"dense": ""} | pairs
    result["variants"].pop(1)
    assert not table_rows(study_markdown(result))["taught"]["Δ mAP, 3 both"]


def grid_result(maps):
    """A result with a grid: mAP in percent by variant, rate and seed."""
    variants = [
        {
            "name": f"{family}, {rate:g}",
            "family": family,
            "rate": rate,
            "runs": {
                str(seed): {"patterns": {"3": {"mAP": one / 100}}} for seed, one in seeds.items()
            },
        }
        for family, rates in maps.items()
        for rate, seeds in rates.items()
    ]
    return {"title": "", "version": "", "patterns": [3], "variants": variants}


def test_the_search_ends_where_the_best_rate_has_its_neighbours():
    """From the middle of the grid, up or down, and to an end of it; a failed run counts as the worst."""
    grid = (0.001, 0.002, 0.003, 0.005, 0.008)
    maps = {name: {rate: {} for rate in grid} for name in ("up", "middle", "failed")}

    def search():
        names = next_rates(grid_result(maps)["variants"], 3)
        return [(family, float(rate)) for family, rate in (name.split(", ") for name in names)]

    assert search() == [(family, rate) for family in maps for rate in (0.002, 0.003, 0.005)]
    maps["up"] |= {0.002: {101: 50.0}, 0.003: {101: 40.0}}  # as where a study was stopped
    assert search()[:2] == [("up", 0.001), ("up", 0.005)]
    maps["up"] = {rate: {} for rate in grid}
    for family, best in {"up": 0.005, "middle": 0.003, "failed": 0.002}.items():
        maps[family] |= {rate: {101: 40.0} for rate in (0.002, 0.003, 0.005)} | {best: {101: 50.0}}
    assert search() == [("up", 0.008), ("failed", 0.001)]
    maps["up"][0.008] = {101: 60.0}
    result = grid_result(maps)
    result["variants"][2 * len(grid)]["runs"] = {"101": {"failed": "diverged"}}
    assert next_rates(result["variants"], 3) == []


def test_the_rate_with_the_best_mean_of_all_seeds_is_chosen(tmp_path):
    maps = {
        "dense": {0.001: {101: 50.0}, 0.002: {101: 61.0}, 0.003: {101: 62.0}, 0.005: {101: 58.0}},
        "slim": {0.001: {101: 50.0}, 0.002: {}, 0.003: {101: 40.0}, 0.005: {101: 30.0}},
    }
    names = finalists(grid_result(maps)["variants"], 3)
    assert sorted(names) == [
        *("dense, 0.002", "dense, 0.003", "dense, 0.005"),
        *("slim, 0.001", "slim, 0.003", "slim, 0.005"),
    ]
    later = {0.001: 9, 0.002: 8, 0.003: 7, 0.005: 6}  # seed 99 is the first
    both = {rate: {101: two, 99: -two} for rate, two in later.items()}
    names = finalists(grid_result({"x": both})["variants"], 3)
    assert sorted(names) == ["x, 0.002", "x, 0.003", "x, 0.005"]
    for rate, second in {0.002: 63.0, 0.003: 61.5, 0.005: 57.0}.items():
        maps["dense"][rate][102] = second
    for rate in (0.001, 0.003, 0.005):
        maps["slim"][rate][102] = maps["slim"][rate][101]
    maps["slim"][0.002] = {101: 90.0}  # one seed proves nothing
    for name, grid in {"rates": maps, "other": {"else": {0.1: {101: 1.0}}}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(grid_result(grid)))
    assert chosen_rates(tmp_path) == {"dense": 0.002, "slim": 0.001}
    assert "| dense | 50.0 | **62.0** | 61.8 | 57.5 |" in study_markdown(grid_result(maps))
