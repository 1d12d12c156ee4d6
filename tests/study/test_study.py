"""demo-sdtps study: every run is made once, failures are reported, and the tables agree with the results of the runs."""

import csv
import json
import random
import shutil
import statistics
from pathlib import Path

import pytest
import yaml
from commands import BASELINE, CONFIG, ONE_LINE, ROOT, SMALL

from demo_sdtps.commands import study as tool
from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import latex_table, markdown_table
from demo_sdtps.study import variants as variants_module
from demo_sdtps.study.report import paired_difference, result_table, study_markdown, study_table
from demo_sdtps.study.results import measurement
from demo_sdtps.study.runs import finished_runs, steps
from demo_sdtps.study.variants import make_variants, read_study
from tests.reference import statistics as reference

STUDIES = sorted((ROOT / "studies").glob("*.yml"))


SHORT = "--changed_tree SOLVER.MAX_EPOCHS 1 SOLVER.WARMUP_ITERS 0 DATASETS.ROOT_DIR"


def write(folder, variants, **more):
    """A study on tiny images."""
    content = {
        "title": "A study",
        "config": str(CONFIG),
        "seeds": [1, 2],
        "set": dict(zip(SMALL[::2], SMALL[1::2], strict=True)),
        "missing": True,
        "selection": True,
        "variants": variants,
    } | more
    path = folder / "tiny.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def table_rows(text):
    """The cells of a Markdown table's rows by the first, without emphasis."""
    lines = [
        [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


@pytest.mark.slow
@pytest.mark.soak
def test_a_study_of_two_variants_and_two_seeds(tiny_root, tmp_path, monkeypatch, command):
    """What is lost, and it alone, is made again."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs" / "studies" / "runs"
    study = write(tmp_path, {"Baseline": {"config": str(BASELINE)}, "SDTPS": {}})
    files = tmp_path / "x.csv", tmp_path / "x.tex"
    tables = ("--csv", files[0], "--latex", files[1], "--overwrite")
    words = [study, *tables, "--jobs", "2", *SHORT.split(), tiny_root]
    assert command(tool.main, *words)[0] == 0
    (interrupted,), (unmeasured,) = (
        sorted(runs.glob(f"{name}-*/seed_{seed}"))
        for name, seed in (("Baseline", 2), ("DeMo_SDTPS", 1))
    )
    record = json.loads((interrupted / "run.json").read_text())
    (interrupted / "run.json").write_text(json.dumps(record | {"status": "running"}))
    (unmeasured / "selection.json").unlink()
    path = tmp_path / "runs" / "studies" / "tiny.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"variants": []}))
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")}
    assert command(tool.main, *words)[0] == 0
    repeated = json.loads(path.read_text())
    assert repeated["variants"][1]["runs"] == result["variants"][1]["runs"]
    # The measurement of the interrupted run is older than the repeated run, so it is repeated too.
    now = {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")}
    assert {path for path in now if before.get(path) != now[path]} == {
        unmeasured / "selection.json",
        *(interrupted / f"{name}.json" for name in ("metrics", "run", "missing")),
    }
    for run in (path.parent for path in runs.rglob("metrics.json")):
        assert json.loads((run / "metrics.json").read_text())[-1]["epoch"] == 1
        assert json.loads((run / "run.json").read_text())["seed"] == int(run.name[-1])
        assert (run / "selection.json").exists() == run.parent.name.startswith("DeMo_SDTPS")

    rows = [*csv.reader(files[0].read_text().splitlines())]
    printed = table_rows(study_markdown(repeated))
    assert rows == [[*printed["SDTPS"]], *([*row.values()] for row in printed.values())]
    assert [row[-1] for row in rows] == ["of the dense model", "100%", "100%"]
    assert files[1].read_text() == latex_table(*result_table(repeated)) + "\n"

    shutil.rmtree(runs)  # the result has its variants
    assert command(tool.main, *words)[0] == 0 and not runs.exists()


@pytest.mark.slow
@pytest.mark.soak
def test_a_failed_run_is_reported_and_the_others_continue(
    tiny_root, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    variants = {
        "too fast": {"set": {"SOLVER.BASE_LR": 1e30}},
        "Baseline": {"config": str(BASELINE)},
    }
    path = write(tmp_path, variants, seeds=[1], missing=False, selection=False)
    code, stdout, _ = command(tool.main, path, *SHORT.split(), tiny_root)
    assert code == 1
    failure = next(line for line in stdout.splitlines() if line.startswith("- too fast, seed 1:"))
    assert "The loss became" in failure
    rows = table_rows(stdout)
    assert rows["too fast (0 of 1 runs)"]["mAP, 3 both"] == "–"
    assert float(rows["Baseline"]["mAP, 3 both"]) > 0


@pytest.mark.parametrize("key", ["similarity", "calibration", "times"])
def test_what_needs_a_checkout_is_refused_elsewhere(tmp_path, monkeypatch, key):
    path = write(tmp_path, {"a": {}}, **{key: True})
    assert read_study(path)[key]
    monkeypatch.setattr(variants_module, "ROOT", tmp_path)
    with pytest.raises(UserError, match=f"tiny.yml: {key} needs a checkout of the project"):
        read_study(path)


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
    """A variant with random measurements; some of its dense kind have none of the selection."""
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
            "recall": draw.random(),
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
        assert row["recall of the object"] == spread([run["recall"] for run in runs])
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


def test_a_variant_is_compared_with_the_one_it_names(tmp_path, monkeypatch):
    """The others with the first; nothing is compared with what has no run yet; another name is refused."""
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

    text = study_markdown(result)
    means = {
        name: row["Δ mAP, 3 both"].strip("*").partition(" ")[0].strip("*")
        for name, row in table_rows(text).items()
    }
    pairs = {"longer": "dense", "slim": "dense"} | against
    gains = {name: f"{mean(name) - mean(other):+.1f}" for name, other in pairs.items()}
    assert means == {"dense": ""} | gains and len({*gains.values()}) == len(gains)
    assert "relative to dense; Δ of taught · both: to longer; Δ of other: to slim." in text
    result["variants"].pop(1)
    assert not table_rows(study_markdown(result))["taught"]["Δ mAP, 3 both"]

    monkeypatch.chdir(ROOT)
    sets = {"a": {}, "b": {"against": "a", "set": {"MODEL.SDTPS_BETA": 0.3}}}
    made = make_variants(read_study(write(tmp_path, sets)), [], tmp_path)
    assert [one.facts.get("against") for one in made] == [None, "a"]
    del sets["b"]["against"]
    plain = make_variants(read_study(write(tmp_path, sets)), [], tmp_path)
    for place in ("configuration", "folder"):
        assert [getattr(one, place) for one in made] == [getattr(one, place) for one in plain]
    sets["b"]["against"] = "c"
    with pytest.raises(UserError, match="'b' is compared with 'c', which is no variant"):
        make_variants(read_study(write(tmp_path, sets)), [], tmp_path)


@pytest.fixture(scope="module")
def tuned():
    """Variants that have a learning rate of their own."""
    studies = [read_study(ROOT / path) for path in STUDIES if path.stem.startswith("rates")]
    return {name for study in studies for name in study["variants"]}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_studies_are_whole(path, tuned, monkeypatch, tmp_path):
    """Every variant is a configuration that loads, and no two of a study are the same."""
    monkeypatch.chdir(ROOT)
    study = read_study(path)
    rates = {name: 0.001 * place for place, name in enumerate(sorted(tuned), 1)}
    variants = make_variants(study, [], tmp_path, rates=rates)
    assert len({variant.configuration for variant in variants}) == len(variants) > 1
    assert not study["tuned"] or all(len(variant.seeds) >= 5 for variant in variants)


def test_the_same_runs_serve_several_studies(monkeypatch, tmp_path):
    """Where configurations are the same; another seed, value or data set is another run."""
    monkeypatch.chdir(ROOT)

    def folder(variant, *opts, **more):
        study = read_study(write(tmp_path, {"x": variant}, **more))
        return make_variants(study, list(opts), Path("r"))[0]

    plain = folder({})
    assert folder({"set": {"MODEL.SDTPS_BETA": 0.25}}, title="Another").folder == plain.folder
    others = [
        folder({"set": {"MODEL.SDTPS_BETA": 0.3}}),
        folder({}, "DATASETS.ROOT_DIR", "/elsewhere"),
        folder({"config": str(BASELINE)}),
    ]
    assert len({plain.folder, *(other.folder for other in others)}) == 4
    assert plain.run_folder(1) != plain.run_folder(2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"variants": {"a": {"sets": {}}}}, "'sets'"),
        (
            {"variants": {"a": {"config": str(CONFIG), "set": {"MODEL.SDTPS_BETA": 3}}}},
            "MODEL.SDTPS_BETA",
        ),
        ({"variants": {"a": {"config": str(CONFIG)}, "b": {"config": str(CONFIG)}}}, "'a' and 'b'"),
    ],
)
def test_a_mistake_in_a_study_is_one_sentence(tmp_path, monkeypatch, command, content, reason):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mistaken.yml"
    path.write_text(yaml.safe_dump(content))
    code, stdout, stderr = command(tool.main, path, "--changed_tree")
    assert code == 2 and stdout == ""
    assert stderr.startswith(ONE_LINE) and stderr.count("\n") == 1 and stderr.endswith(".\n")
    assert reason in stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mistaken.yml"]


def test_a_result_of_other_files_is_refused(tmp_path, monkeypatch):
    """And its runs are kept where that is asked for, but for those that failed or have another configuration."""
    monkeypatch.chdir(ROOT)
    sets = {name: {"set": {"MODEL.SDTPS_BETA": beta / 10}} for beta, name in enumerate("abc")}
    variants = make_variants(read_study(write(tmp_path, sets)), [], tmp_path)
    done = [variant.facts | {"gmacs": 2.0, "runs": {"1": {}, "2": {}}} for variant in variants]
    done[1]["runs"]["2"] = {"failed": "diverged"}
    done[2]["configuration"] = "0123456789"
    path = tmp_path / "result.json"
    result = {"title": "", "tree": "1" * 40, "patterns": [], "variants": done}
    path.write_text(json.dumps(result))
    kept = {"a": {"gmacs": 2.0, "runs": {"1": {}, "2": {}}}, "b": {"gmacs": 2.0, "runs": {"1": {}}}}
    for tree in ("1" * 40, None):
        assert finished_runs(path, variants, tree) == kept
    with pytest.raises(UserError, match=r"sources 1{10}, but the checkout's are 2{10}; .*--"):
        finished_runs(path, variants, "2" * 40)


def test_an_evaluation_of_its_own_shares_the_training(tmp_path, monkeypatch):
    """And its result is that of demo-sdtps test, not of the training's end."""
    monkeypatch.chdir(ROOT)
    slim = {"MODEL.SLIM_SCORE": "saliency", "MODEL.SLIM_BLOCKS": [0], "MODEL.SLIM_KEEP": [0.5]}
    study = read_study(write(tmp_path, {"a": {}, "b": {"evaluate": slim}}, missing=False))
    dense, slimmed = make_variants(study, [], tmp_path)
    assert dense.folder == slimmed.folder and dense.configuration != slimmed.configuration
    assert (dense.cfg.MODEL.SLIM_BLOCKS, slimmed.cfg.MODEL.SLIM_BLOCKS) == ([], [0])
    training, evaluation = (words for words, _ in steps(slimmed, 1, study | {"selection": False}))
    assert training == steps(dense, 1, study)[0][0]
    assert evaluation[2] == "test" and "MODEL.SLIM_BLOCKS" in evaluation
    content = {"cases": {"None": {"3": {"mAP": 0.5}}}}
    assert measurement("evaluation_12", content) == {"patterns": content["cases"]["None"]}


def test_a_tuned_variant_has_the_chosen_rate(tmp_path, monkeypatch):
    """That of its name, or of another that it names."""
    monkeypatch.chdir(ROOT)
    sets = {"a": {}, "b": {"rate_of": "a", "set": {"MODEL.SDTPS_BETA": 0.3}}}
    study = read_study(write(tmp_path, sets, tuned=True))
    variants = make_variants(study, [], tmp_path, rates={"a": 0.004})
    assert [variant.cfg.SOLVER.BASE_LR for variant in variants] == [0.004, 0.004]
    assert [variant.facts["rate"] for variant in variants] == [0.004, 0.004]
    with pytest.raises(UserError, match="'a' needs the learning rate"):
        make_variants(study, [], tmp_path)
