"""python -m studies.run: a study file, its variants, and their runs, each of which is made once."""

import json
from pathlib import Path

import pytest
import yaml
from commands import BASELINE, CONFIG, ROOT
from study_files import write

from demo_sdtps import __version__
from demo_sdtps.config import UserError
from studies import run as tool
from studies.report import study_markdown
from studies.run import make_variants, read_study
from studies.runs import finished_rows, measurement, steps, waves, with_run

STUDIES = sorted((ROOT / "studies").glob("*.yml"))
SHORT = "SOLVER.MAX_EPOCHS 1 SOLVER.WARMUP_ITERS 0 DATASETS.ROOT_DIR"
BETA = {"set": {"MODEL.SDTPS_BETA": 0.3}}


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
    assert len({variant.configuration for variant in variants}) == len(variants) > 1
    assert not study["tuned"] or all(len(variant.seeds) >= 5 for variant in variants)


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
    _, (dense, slim) = make({"dense": {}, "slim": {"teacher": "dense"}}, runs=tmp_path)
    left = [(slim, seed) for seed in (1, 2, 3, 4)] + [(dense, 4)]
    for seed, status in ((1, "finished"), (2, "running"), (3, "finished")):
        folder = dense.run_folder(seed)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(f'{{"status": "{status}"}}')
        (folder / "last.pth").touch()
    (folder / "last.pth").unlink()
    first, second = ([(one.name, seed) for one, seed in wave] for wave in waves(left))
    assert sorted(first) == [("dense", 2), ("dense", 3), ("dense", 4)]
    assert second == [("slim", 1), ("slim", 2), ("slim", 3), ("slim", 4)]


def test_a_run_that_is_made_again_for_its_weights_keeps_its_figures():
    runs = with_run(with_run(with_run({}, 10, "tenth"), 9, "ninth"), 10, "another processor's")
    assert [*runs.items()] == [("9", "ninth"), ("10", "tenth")]
