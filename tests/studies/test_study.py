"""demo-sdtps study: every run is made once, failures are reported, and the tables agree with the results of the runs."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml
from commands import BASELINE, CONFIG, ONE_LINE, ROOT
from study_files import table_rows, write

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.tables import latex_table
from studies import run as tool
from studies.report import result_table, study_markdown
from studies.results import measurement
from studies.runs import finished_runs, steps
from studies.variants import make_variants, read_study

STUDIES = sorted((ROOT / "studies").glob("*.yml"))


SHORT = "--changed_tree SOLVER.MAX_EPOCHS 1 SOLVER.WARMUP_ITERS 0 DATASETS.ROOT_DIR"


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
    (unmeasured / "missing.json").unlink()
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
        unmeasured / "missing.json",
        *(interrupted / f"{name}.json" for name in ("metrics", "run", "missing")),
    }
    for run in (path.parent for path in runs.rglob("metrics.json")):
        assert json.loads((run / "metrics.json").read_text())[-1]["epoch"] == 1
        assert json.loads((run / "run.json").read_text())["seed"] == int(run.name[-1])

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
    path = write(tmp_path, variants, seeds=[1], missing=False)
    code, stdout, _ = command(tool.main, path, *SHORT.split(), tiny_root)
    assert code == 1
    failure = next(line for line in stdout.splitlines() if line.startswith("- too fast, seed 1:"))
    assert "The loss became" in failure
    rows = table_rows(stdout)
    assert rows["too fast (0 of 1 runs)"]["mAP, 3 both"] == "–"
    assert float(rows["Baseline"]["mAP, 3 both"]) > 0


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
    training, evaluation = (words for words, _ in steps(slimmed, 1, study))
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


def test_what_a_variant_is_compared_with_changes_no_run(tmp_path, monkeypatch):
    """And another name is refused."""
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
