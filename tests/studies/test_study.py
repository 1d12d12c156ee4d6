"""python -m studies.run: a study file, variants, runs, each made once, the table of the result, the learning rates."""

import json
import random
import statistics
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import yaml
from commands import BASELINE, CONFIG, ROOT, SMALL

from demo_sdtps import __version__
from demo_sdtps.commands import test as evaluate
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.datasets import read_splits
from studies import run as tool
from studies.figures import draw_differences, plt
from studies.measure import identities
from studies.report import (
    chosen_rates,
    finalists,
    identity_difference,
    next_rates,
    paired_difference,
    study_markdown,
)
from studies.run import make_variants, read_study
from studies.runs import finished_rows, measurement, steps, waves, with_run

STUDIES = sorted((ROOT / "studies").rglob("*.yml"))
SHORT = "SOLVER.MAX_EPOCHS 1 SOLVER.WARMUP_ITERS 0 DATASETS.ROOT_DIR"
BETA = {"set": {"MODEL.SDTPS_BETA": 0.3}}


def write(folder, variants, **more):
    """A study on tiny images."""
    content = {
        "title": "A study",
        "config": str(CONFIG),
        "seeds": [1, 2],
        "set": dict(zip(SMALL[::2], SMALL[1::2], strict=True)),
        "missing": True,
        "variants": variants,
    } | more
    path = folder / "tiny.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A study of variants → it, and its variants."""
    monkeypatch.chdir(ROOT)

    def make(variants, *opts, runs=Path("r"), rates=None, **more):
        study = read_study(write(tmp_path, variants, **more))
        return study, make_variants(study, opts, runs, rates or {})

    return make


@pytest.mark.slow
@pytest.mark.soak
def test_a_study_of_two_variants_and_two_seeds(tiny_root, tmp_path, monkeypatch, command):
    """What is lost, and it alone, is made again."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs" / "studies" / "runs"
    study = write(tmp_path, {"Baseline": {"config": str(BASELINE)}, "SDTPS": {}})
    words = [study, "--jobs", "2", *SHORT.split(), tiny_root]
    assert command(tool.main, *words)[0] == 0
    (interrupted,), (unmeasured,) = (
        sorted(runs.glob(f"{name}-*/seed_{seed}"))
        for name, seed in (("Baseline", 2), ("DeMo_SDTPS", 1))
    )
    record = json.loads((interrupted / "run.json").read_text())
    (interrupted / "run.json").write_text(json.dumps(record | {"status": "running"}))
    (unmeasured / "missing.json").unlink()
    path = tmp_path / "runs" / "studies" / "tiny.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"variants": []}))
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")}
    code, stdout, _ = command(tool.main, *words)
    repeated = json.loads(path.read_text())
    assert code == 0 and study_markdown(repeated) in stdout
    assert repeated["variants"][1]["runs"] == result["variants"][1]["runs"]
    now = {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")}
    assert {path for path in now if before.get(path) != now[path]} == {
        unmeasured / "missing.json",
        interrupted / "metrics.json",
        interrupted / "run.json",
    }


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_studies_are_whole(path, monkeypatch, tmp_path):
    """Every variant is a configuration that loads, and no two of a study are the same."""
    monkeypatch.chdir(ROOT)
    studies = [read_study(each) for each in STUDIES if each.stem.startswith("rates")]
    names = sorted({name for study in studies for name in study["variants"]})
    rates = {name: 0.001 * place for place, name in enumerate(names, 1)}
    study = read_study(path)
    variants = make_variants(study, [], tmp_path, rates)
    assert len({variant.configuration for variant in variants}) == len(variants)
    least = 2 if study["identities"] else 5  # whose intervals are over identities
    assert not study["tuned"] or all(len(variant.seeds) >= least for variant in variants)


def test_the_same_runs_serve_several_studies(make):
    """Where configurations are the same; another seed, value or data set is another run."""
    _, (plain,) = make({"x": {}})
    _, (same,) = make({"x": {"set": {"MODEL.SDTPS_BETA": 0.25}}}, title="Another")
    others = [
        *make({"x": BETA})[1],
        *make({"x": {}}, "DATASETS.ROOT_DIR", "/elsewhere")[1],
        *make({"x": {"config": str(BASELINE)}})[1],
    ]
    assert same.folder == plain.folder
    assert len({plain.folder, *(other.folder for other in others)}) == 4
    assert plain.run_folder(1) != plain.run_folder(2)


@pytest.mark.parametrize(
    ("variants", "named"),
    [
        ({"a": {"sets": {}}}, "'sets'"),
        ({"a": {"set": {"MODEL.SDTPS_BETA": 3}}}, "MODEL.SDTPS_BETA"),
        ({"a": {}, "b": {}}, "'a' and 'b'"),
        ({"a": {}, "b": BETA | {"against": "c"}}, "'c'"),
        ({"a": {}, "b": BETA | {"teacher": "b"}}, "'b'"),
    ],
)
def test_a_mistake_in_a_study_is_refused(tmp_path, monkeypatch, command, variants, named):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mistaken.yml"
    path.write_text(yaml.safe_dump({"config": str(CONFIG), "variants": variants}))
    code, stdout, stderr = command(tool.main, path)
    assert code == 2 and stdout == "" and named in stderr and stderr.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["mistaken.yml"]


def test_a_result_of_another_version_is_refused(make, tmp_path):
    """Of the same version its runs are kept, but for those that failed or have another configuration."""
    sets = {name: {"set": {"MODEL.SDTPS_BETA": beta / 10}} for beta, name in enumerate("abc")}
    _, variants = make(sets)
    rows = [variant.facts | {"gmacs": 2.0, "runs": {"1": {}, "2": {}}} for variant in variants]
    rows[1]["runs"]["2"] = {"failed": "diverged"}
    rows[2]["configuration"] = "0123456789"
    path = tmp_path / "result.json"
    result = {"title": "", "version": __version__, "patterns": [], "variants": rows}
    path.write_text(json.dumps(result))
    kept = [(row.get("gmacs"), [*row["runs"]]) for row in finished_rows(path, variants).values()]
    assert kept == [(2.0, ["1", "2"]), (2.0, ["1"]), (None, [])]
    path.write_text(json.dumps(result | {"version": "0.1.0"}))
    with pytest.raises(UserError, match=r"0\.1\.0"):
        finished_rows(path, variants)


def test_an_evaluation_of_its_own_shares_the_training(make):
    """And its result is that of demo-sdtps test, not of the training's end."""
    slim = {"MODEL.SLIM_SCORE": "saliency", "MODEL.SLIM_BLOCKS": [0], "MODEL.SLIM_KEEP": [0.5]}
    study, (dense, slimmed) = make({"a": {}, "b": {"evaluate": slim}}, missing=False)
    assert dense.folder == slimmed.folder and dense.configuration != slimmed.configuration
    assert (dense.cfg.MODEL.SLIM_BLOCKS, slimmed.cfg.MODEL.SLIM_BLOCKS) == ([], [0])
    training, evaluation = (words for words, _ in steps(slimmed, 1, study))
    assert training == steps(dense, 1, study)[0][0]
    assert evaluation[1] == "test" and "MODEL.SLIM_BLOCKS" in evaluation
    content = {"cases": {"None": {"3": {"mAP": 0.5}}}}
    assert measurement("evaluation_12", content) == {"patterns": content["cases"]["None"]}


def test_a_seed_names_the_fold_of_the_data(make):
    """Of the training and of what is measured, which for an evaluation of its own is this one."""
    more = {"identities": True, "missing": False}
    slim = {"evaluate": {"MODEL.SLIM_BLOCKS": [0], "MODEL.SLIM_KEEP": [0.5]}}
    study, (dense, slimmed) = make({"a": {}, "b": slim}, roots=["first", "second"], **more)
    for seed, root in ((1, "second"), (2, "first")):
        for words, _ in steps(slimmed, seed, study):
            assert words[len(words) - words[::-1].index("DATASETS.ROOT_DIR")] == root
    (words, file), (others, other_file) = (steps(one, 1, study)[-1] for one in (slimmed, dense))
    assert words[:3] == others[:3] == ["studies.measure", "--what", "identities"]
    assert "MODEL.SLIM_BLOCKS" in words and "MODEL.SLIM_BLOCKS" not in others and file != other_file
    assert measurement(file.stem, {"7": [0.5, 2]}) == {"identities": {"7": [0.5, 2]}}
    _, (other, _) = make({"a": {}, "b": slim}, roots=["first", "third"], **more)
    assert other.folder != dense.folder and other.configuration != dense.configuration


def test_average_precision_by_identity_is_that_of_the_ranking(fused_words, success):
    """Its mean over the queries is the mAP that demo-sdtps test prints."""
    cfg = load_cfg(CONFIG, fused_words[2:])
    found = identities(cfg)
    queries = [sample.identity for sample in read_splits(cfg, ("query",))["query"]]
    assert {name: count for name, (_, count) in found.items()} == Counter(map(str, queries))
    total = sum(precision * count for precision, count in found.values()) / len(queries)
    assert f"{100 * total:.1f}" in success(evaluate.main, *fused_words).splitlines()[-1].split()


def test_a_tuned_variant_has_the_chosen_rate(make):
    """That of its name, or of another that it names."""
    sets = {"a": {}, "b": BETA | {"rate_of": "a"}}
    _, variants = make(sets, rates={"a": 0.004}, tuned=True)
    assert [variant.cfg.SOLVER.BASE_LR for variant in variants] == [0.004, 0.004]
    assert [variant.facts["rate"] for variant in variants] == [0.004, 0.004]
    with pytest.raises(UserError, match="'a'"):
        make(sets, tuned=True)


def test_a_variant_starts_or_learns_from_the_run_of_another_with_its_seed(make):
    study, (dense, slim) = make({"dense": {}, "slim": {"start": "dense", "teacher": "dense"}})
    (training, _), (test, _) = steps(slim, 2, study)
    weights = str(dense.run_folder(2) / "last.pth")
    assert training[-4:] == ["TEST.WEIGHT", weights, "MODEL.TEACHER", weights]
    assert slim.facts["command"].endswith("TEST.WEIGHT '<dense>' MODEL.TEACHER '<dense>'")
    after = test[test.index("MODEL.TEACHER") + 2 :]
    assert after[:2] == ["TEST.WEIGHT", str(slim.run_folder(2) / "last.pth")]
    others = [
        make({"dense": {}, "slim": {"teacher": "dense"}}),
        make({"dense": {}, "slim": {"start": "dense"}}),
    ]
    taught = [slim, *(variant for _, (_, variant) in others)]
    for place in ("configuration", "folder"):
        assert len({getattr(variant, place) for variant in taught}) == 3


def test_a_run_whose_weights_are_gone_is_made_again_for_those_that_need_it(make, tmp_path):
    sets = {"dense": {}, "slim": {"teacher": "dense"}, "taught": {"start": "slim"}}
    _, (dense, slim, taught) = make(sets, runs=tmp_path)
    left = [(taught, 2), *((slim, seed) for seed in (1, 3, 4)), (dense, 4)]
    for seed, status in ((1, "finished"), (2, "running"), (3, "finished")):
        folder = dense.run_folder(seed)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(f'{{"status": "{status}"}}')
        (folder / "last.pth").touch()
    (folder / "last.pth").unlink()
    first, *others = waves(left)
    assert first == [(dense, 2), (slim, 1), (dense, 3), (dense, 4)]
    assert others == [[(slim, 2), (slim, 3), (slim, 4)], [(taught, 2)], []]
    _, (dense, slim) = make({"a": {}, "b": {"evaluate": {"TEST.MISS": "r"}}})
    assert waves([(dense, 1), (slim, 1)]) == [[(dense, 1)], [(slim, 1)]]
    # and keeps its figures
    runs = with_run(with_run(with_run({}, 10, "tenth"), 9, "ninth"), 10, "another processor's")
    assert [*runs.items()] == [("9", "ninth"), ("10", "tenth")]


# The result


def table_rows(text):
    """The cells of a Markdown table's rows by the first, without emphasis."""
    lines = [
        [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def student(differences):
    """Student's 95 % interval of a mean, by the book's table of quantiles."""
    quantile = {3: 4.303, 5: 2.776}[len(differences)]
    mean = statistics.mean(differences)
    half = quantile * statistics.stdev(differences) / len(differences) ** 0.5
    return mean - half, mean + half


@pytest.mark.parametrize("count", [3, 5])
def test_intervals_like_the_slow_ones(count):
    draw = random.Random(0)
    first = {str(number): draw.gauss(50, 2) for number in range(count)}
    values = {name: value + draw.gauss(1, 1.5) for name, value in first.items()}
    differences = [values[name] - first[name] for name in first]
    mean, *limits = paired_difference(values | {"of one alone": 3.0}, first)
    assert mean == pytest.approx(statistics.mean(differences))
    spread = max(differences) - min(differences)
    assert limits == [pytest.approx(bound, abs=1e-3 * spread) for bound in student(differences)]
    assert paired_difference({"0": 13.0}, first) is None


def test_intervals_over_identities_are_those_of_a_slow_bootstrap():
    """Each draw has as many identities, whose queries count as often as they are drawn; unequal numbers of queries."""
    draw = random.Random(3)

    def run(shift):
        return {str(one): [draw.random() * 0.5 + shift, 1 + one % 4] for one in range(20)}

    ours, theirs = ({seed: {"identities": run(shift)} for seed in "12"} for shift in (0.2, 0.3))
    gains = {
        name: [
            100 * (ours[seed]["identities"][name][0] - theirs[seed]["identities"][name][0])
            for seed in "12"
            for _ in range(count)
        ]
        for name, (_, count) in ours["1"]["identities"].items()
    }
    draws = ([*gains.values()], *(draw.choices([*gains.values()], k=20) for _ in range(4000)))
    every, *means = (statistics.mean(chain(*drawn)) for drawn in draws)
    mean, *limits = identity_difference({"runs": ours}, {"runs": theirs})
    assert mean == pytest.approx(every)
    near = 0.15 * statistics.stdev(means)
    assert limits == [pytest.approx(sorted(means)[place], abs=near) for place in (100, 3900)]
    assert identity_difference({"runs": ours}, {"runs": {}}) is None


def test_the_figure_shows_the_differences_and_their_intervals(tmp_path, monkeypatch):
    """A line for each method, dashed without training; what costs as much as the first is none of its points."""
    draw = random.Random(4)
    costs = {"dense": 100, "longer": 100, "slim, a": 60, "slim, b": 30, "slim without training": 60}
    values = [{str(place): [draw.random(), 2] for place in range(9)} for _ in costs]
    rows = [
        {"name": name, "gmacs": cost, "runs": {"1": {"identities": one}}}
        for (name, cost), one in zip(costs.items(), values, strict=True)
    ]
    rows[3]["against"] = "longer"
    monkeypatch.setattr(plt, "close", lambda *_: None)
    draw_differences({"title": "", "patterns": [3], "variants": rows}, tmp_path / "x.png")
    (line, *_), (dashed, *_) = (one.lines for one in plt.gcf().axes[0].containers)
    means = [identity_difference(*pair)[0] for pair in ((rows[3], rows[1]), (rows[2], rows[0]))]
    assert line.get_xydata().tolist() == [[30.0, means[0]], [60.0, means[1]]]
    assert (dashed.get_linestyle(), len(dashed.get_xdata())) == ("--", 1)


CASES = ("nothing", "r", "n", "t", "rn", "rt", "nt")


def draw_variant(draw, name, seeds=("1", "2", "3")):
    """A variant with random measurements."""
    sets = ("R", "N", "T", "RN", "RT", "NT", "RNT")

    def scores():
        return {
            str(pattern): {"mAP": draw.random(), "Rank-1": draw.random()} for pattern in (1, 2, 3)
        }

    def run():
        return {
            "patterns": scores(),
            "missing": {case: {pattern: draw.random() for pattern in "123"} for case in CASES},
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
        assert row["mAP, modalities missing"] == spread(
            [statistics.mean(run["missing"][case]["3"] for case in CASES[1:]) for run in runs]
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
    low, high = student(gain)
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
    for rate, second in {0.002: 63.0, 0.003: 61.5, 0.005: 57.0}.items():
        maps["dense"][rate][102] = second
    for rate in (0.001, 0.003, 0.005):
        maps["slim"][rate][102] = maps["slim"][rate][101]
    maps["slim"][0.002] = {101: 90.0}  # one seed proves nothing
    for name, grid in {"rates": maps, "other": {"else": {0.1: {101: 1.0}}}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(grid_result(grid)))
    assert chosen_rates(tmp_path) == {"dense": 0.002, "slim": 0.001}
    assert "| dense | 50.0 | **62.0** | 61.8 | 57.5 |" in study_markdown(grid_result(maps))
