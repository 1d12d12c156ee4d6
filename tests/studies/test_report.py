"""Tables of a study: means, paired differences and their intervals, and what is compared with what."""

import random
import statistics

import pytest
from study_files import table_rows

from demo_sdtps.evaluation.tables import markdown_table
from studies.report import legend, paired_difference, study_markdown, study_table
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


@pytest.mark.parametrize(
    "values, is_bold", [((13.0, 13.2, 12.8), True), ((10.1, 13.0, 11.5), False), ((7.0, 6.8), True)]
)
def test_a_difference_is_bold_where_its_interval_excludes_0(values, is_bold):
    def variant(name, maps):
        runs = {
            str(seed): {"patterns": {"3": {"mAP": value / 100, "Rank-1": 0.5}}}
            for seed, value in enumerate(maps)
        }
        return {"name": name, "runs": runs}

    variants = [variant("dense", [10.0] * len(values)), variant("slim", values)]
    actual = markdown_table(*study_table({"patterns": [3], "variants": variants}))
    low, high = reference.student([value - 10 for value in values])
    assert ("**" in actual) == is_bold == (low > 0 or high < 0)


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
    actual = table_rows(
        markdown_table(*study_table({"patterns": [1, 3], "variants": [first, other]}))
    )

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
    result = {"patterns": [3], "variants": [*variants.values()], "tree": None}

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
    assert legend(result).startswith("Percent over ") and "relative to dense, or as" in legend(
        result
    )
    result["variants"].pop(1)
    assert not table_rows(study_markdown(result))["taught"]["Δ mAP, 3 both"]


@pytest.mark.parametrize("share, is_shown", [(0.5, False), (0.4, True)])
def test_the_share_of_the_dense_model_is_shown_where_the_first_is_another(share, is_shown):
    """For then "operations" does not tell it."""
    draw = random.Random(3)
    variants = [draw_variant(draw, name) for name in ("first", "slim")]
    variants[0] |= {"gmacs": 2.0, "dense": 2.0}
    variants[1] |= {"gmacs": 1.0, "dense": 1.0 / share}
    rows = table_rows(markdown_table(*study_table({"patterns": [3], "variants": variants})))
    assert rows["slim"]["operations"] == "0.50"
    assert rows["slim"].get("of the dense model") == ("40%" if is_shown else None)
