"""tools/study.py: every run is made once, failures are reported, and the tables agree with the results of the runs."""
import json
import random
import shutil
import statistics
from itertools import chain
from pathlib import Path

import pytest
import yaml
from commands import BASELINE, CONFIG, ONE_LINE, ROOT, SMALL, scores_of
from PIL import Image
from reference import statistics as reference

from demo_sdtps import test_net
from demo_sdtps.config import UserError
from demo_sdtps.reports.study import as_markdown, paired_difference
from demo_sdtps.studies.runs import finished_variants, make_variants, read_study
from demo_sdtps.tools import study as tool

STUDIES = sorted((ROOT / "studies").glob("*.yml"))
RESULTS = sorted((ROOT / "docs" / "results").glob("*.json"))


def write(folder, **more):
    """A study on tiny images: the baseline, a variant, and one that diverges."""
    content = {
        "title": "A study", "config": str(CONFIG), "seeds": 2, "set": dict(zip(SMALL[::2], SMALL[1::2], strict=True)),
        "missing": True, "selection": True,
        "variants": {"Baseline": {"config": str(BASELINE)}, "SDTPS": {},
                     "too fast": {"set": {"SOLVER.BASE_LR": 1e30}}}} | more
    path = folder / "tiny.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def rows_of(table):
    """The cells of a Markdown table's rows by the first, without emphasis."""
    lines = [[cell.strip().replace("**", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def tables_of(text):
    return [part for part in text.split("\n\n") if part.startswith("|")]


@pytest.mark.slow
@pytest.mark.soak
def test_a_study_of_two_variants_and_two_seeds(tiny_root, tmp_path, monkeypatch, command):
    """What is lost, and it alone, is made again; so are tables and plots, from the result."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs" / "studies" / "runs"
    words = [write(tmp_path, variants={"Baseline": {"config": str(BASELINE)}, "SDTPS": {}}), "--overwrite", "--changed_tree",
             "--jobs", "2", "SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "DATASETS.ROOT_DIR", tiny_root]
    assert command(tool.main, *words)[0] == 0
    (interrupted,), (unmeasured,) = (sorted(runs.glob(f"{name}-*/seed_{seed}"))
                                     for name, seed in (("Baseline", 2), ("DeMo_SDTPS", 1)))
    record = json.loads((interrupted / "run.json").read_text())
    (interrupted / "run.json").write_text(json.dumps(record | {"status": "running"}))
    (unmeasured / "selection.json").unlink()
    made, again = tmp_path / "runs" / "studies" / "tiny", tmp_path / "again"
    result = json.loads((made / "study.json").read_text())
    (made / "study.json").write_text(json.dumps(result | {"variants": []}))
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")}
    assert command(tool.main, *words)[0] == 0
    assert json.loads((made / "study.json").read_text())["variants"][1]["selection"] == result["variants"][1]["selection"]
    # The measurement of the interrupted run is older than the repeated run, so it is repeated too.
    assert {path for path in runs.rglob("*.json") if before.get(path) != path.stat().st_mtime_ns} == {
        unmeasured / "selection.json", *(interrupted / f"{name}.json" for name in ("metrics", "run", "missing"))}
    for run in (path.parent for path in runs.rglob("metrics.json")):
        assert json.loads((run / "metrics.json").read_text())[-1]["epoch"] == 1
        assert json.loads((run / "run.json").read_text())["seed"] == int(run.name[-1])
        assert (run / "selection.json").exists() == run.parent.name.startswith("DeMo_SDTPS")

    shutil.rmtree(runs)  # the result has its variants
    assert command(tool.main, *words)[0] == 0 and not runs.exists()
    assert command(tool.main, made / "study.json", "--output", again)[0] == 0
    assert (again / "study.md").read_text() == (made / "study.md").read_text()
    for name in ("results.png", "costs.png"):
        with Image.open(again / name) as image, Image.open(made / name) as first:
            assert image.size == first.size and image.convert("RGB").getcolors(20) is None


@pytest.mark.slow
def test_a_failed_run_is_reported_and_the_others_continue(tiny_root, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    variants = {"too fast": {"set": {"SOLVER.BASE_LR": 1e30}}, "Baseline": {"config": str(BASELINE)}}
    path = write(tmp_path, variants=variants, missing=False, selection=False, seeds=2)
    words = (path, "--changed_tree", "SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "DATASETS.ROOT_DIR", tiny_root)
    code, stdout, _ = command(tool.main, *words, "--seeds", "1")
    assert code == 1
    failure = next(line for line in stdout.splitlines() if line.startswith("- too fast, seed 1:"))
    assert "The loss became" in failure
    rows = rows_of(tables_of(stdout)[0])
    assert rows["too fast"]["seeds"] == "0 of 1" and rows["too fast"]["mAP"] == "–" and rows["too fast"]["Δ mAP"] == ""
    assert rows["Baseline"]["seeds"] == "1" and float(rows["Baseline"]["mAP"]) > 0


@pytest.mark.parametrize("count", [3, 5])
def test_intervals_like_the_slow_ones(count):
    draw = random.Random(0)
    first = {str(number): draw.gauss(50, 2) for number in range(count)}
    values = {name: value + draw.gauss(1, 1.5) for name, value in first.items()}
    differences = [values[name] - first[name] for name in first]
    found = paired_difference(values | {"of one alone": 3.0}, first)
    assert found.mean == pytest.approx(statistics.mean(differences))
    spread = max(differences) - min(differences)
    assert found.bootstrap == tuple(pytest.approx(bound, abs=0.05 * spread) for bound in reference.bootstrap(differences))
    assert found.student == tuple(pytest.approx(bound, abs=1e-3 * spread) for bound in reference.student(differences))
    assert found == paired_difference(values, first)  # the resamples are the same each time


def test_beyond_noise_means_both_intervals():
    first = dict.fromkeys("abcde", 10.0)
    assert paired_difference({"a": 13.0, "b": 13.2, "c": 12.8, "d": 13.1, "e": 12.9}, first).is_beyond_noise
    assert not paired_difference({"a": 13.0, "b": 7.0, "c": 12.0, "d": 8.0, "e": 10.5}, first).is_beyond_noise
    few = paired_difference({"a": 10.1, "b": 13.0, "c": 11.5}, first)
    assert few.bootstrap[0] > 0 > few.student[0] and not few.is_beyond_noise
    assert paired_difference({"a": 13.0}, first) is None


def test_the_table_of_any_modality_against_any():
    """Means of the cells off the diagonal, with and without a common modality, which the cells here tell apart."""
    sets, draw = ("R", "N", "T", "RN", "RT", "NT", "RNT"), random.Random(1)

    def matrices(base):
        cells = {own: {other: base + draw.uniform(0, 0.1) + 0.3 * bool(set(own) & set(other)) + 0.4 * (own == other)
                       for other in sets} for own in sets}
        return {"mAP": cells, "Rank-1": cells}

    variants = [{"name": name, "records": {}, "made_with": {}, "failed": {}, "missing": {}, "selection": {},
                 **{f"cross_modal_{how}": {"1": matrices(base), "2": matrices(base)} for how in ("all", "shared", "pairs")}}
                for name, base in (("dense", 0.1), ("dropped", 0.2))]
    text = as_markdown({"command": "x", "seeds": [1, 2], "patterns": [], "variants": variants})
    rows = rows_of(next(table for table in tables_of(text) if "a common modality" in table))
    for variant in variants:
        for how, is_common in (("all", True), ("shared", True), ("pairs", True), ("all", False), ("pairs", False)):
            by_seed = [statistics.mean(found["mAP"][own][other] for own in sets for other in sets
                                       if own != other and (len({*own, *other}) < len(own + other)) == is_common)
                       for found in variant[f"cross_modal_{how}"].values()]
            cell = rows[variant["name"]][f"{how}, {'a common modality' if is_common else 'none'}"]
            assert cell.startswith(f"{100 * statistics.mean(by_seed):.1f} ± {100 * statistics.stdev(by_seed):.1f}")
            assert ("," in cell) == (variant["name"] == "dropped")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_studies_are_whole(path, monkeypatch, tmp_path):
    """Every variant is a configuration that loads, and no two of a study are the same."""
    monkeypatch.chdir(ROOT)
    study = read_study(path)
    variants = make_variants(study, [], tmp_path)
    assert len({variant.folder for variant in variants}) == len(variants) > 1
    assert study["seeds"] >= 3


def test_the_same_runs_serve_several_studies(monkeypatch, tmp_path):
    """Where configurations are the same; another seed, value or data set is another run."""
    monkeypatch.chdir(ROOT)

    def folder(variant, *opts, **more):
        return make_variants(read_study(write(tmp_path, variants={"x": variant}, **more)), list(opts), Path("r"))[0]

    plain = folder({})
    assert folder({"set": {"MODEL.SDTPS_BETA": 0.25}}, title="Another").folder == plain.folder
    for key in ("patterns", "return_patterns"):  # the former name, and today's
        assert read_study(write(tmp_path, **{key: [2]}))["return_patterns"] == [2]
    others = [folder({"set": {"MODEL.SDTPS_BETA": 0.3}}), folder({}, "DATASETS.ROOT_DIR", "/elsewhere"),
              folder({"config": str(BASELINE)})]
    assert len({plain.folder, *(other.folder for other in others)}) == 4
    assert plain.run_folder(1) != plain.run_folder(2)


@pytest.mark.parametrize(("content", "said"), [
    ({"variants": {"a": {"sets": {}}}}, "'sets'"),
    ({"variants": {"a": {"config": str(CONFIG), "set": {"MODEL.SDTPS_BETA": 3}}}}, "MODEL.SDTPS_BETA"),
    ({"variants": {"a": {"config": str(CONFIG), "weights": "b"}}}, "'b'")])
def test_a_mistake_in_a_study_is_one_sentence(tmp_path, monkeypatch, command, content, said):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mistaken.yml"
    path.write_text(yaml.safe_dump(content))
    code, stdout, stderr = command(tool.main, path, "--changed_tree")
    assert code == 2 and stdout == ""
    assert stderr.startswith(ONE_LINE) and stderr.count("\n") == 1 and said in stderr and stderr.endswith(".\n")
    assert [file.name for file in tmp_path.iterdir()] == ["mistaken.yml"]


@pytest.mark.slow
def test_a_variant_with_weights_is_evaluated_and_timed(tiny_root, tmp_path, monkeypatch, command):
    """Not trained: test_net.py says the same of the other's weights. Its times and the first variant's are drawn."""
    monkeypatch.chdir(tmp_path)
    setting = {"MODEL.SLIM_BLOCKS": [1], "MODEL.SLIM_KEEP": [0.5], "MODEL.SLIM_SCORE": "distinctness",
               "INPUT.JOINT_AUGMENTATION": True}
    words = [write(tmp_path, config=str(BASELINE), seeds=1, times=True, missing=False, selection=False,
                   variants={"dense": {}, "slim, later": {"weights": "dense", "set": setting}}),
             "--changed_tree", "SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0", "DATASETS.ROOT_DIR", tiny_root]
    assert command(tool.main, *words)[0] == 0
    output = tmp_path / "runs" / "studies"
    result = json.loads((output / "tiny" / "study.json").read_text())
    dense, slim = result["variants"]
    (run,) = (output / "runs").glob("*/seed_1")
    found = tmp_path / "found.json"
    assert command(test_net.main, "--weight", run / "last.pth", *chain(*setting.items()), "--json", found)[0] == 0
    assert slim["records"]["1"] == [{"patterns": scores_of(found)}]
    assert slim["gmacs"] < dense["gmacs"]
    assert all(variant[what] > 0 for variant in (dense, slim) for what in ("inference", "training step"))
    (line,) = (row for table in tables_of((output / "tiny" / "study.md").read_text()) for name, row in rows_of(table).items()
               if name == "slim, later" and "time of inference" in row)
    assert line["time of inference"] == f"{slim['inference'] / dense['inference']:.2f}"
    with Image.open(output / "tiny" / "curves.png") as image:
        assert min(image.size) > 300


def test_a_result_of_other_files_is_refused(tmp_path, monkeypatch):
    """And its variants are kept where that is asked for, but for those that failed, lack a seed or have another command."""
    monkeypatch.chdir(ROOT)
    study = read_study(write(tmp_path, variants={name: {"set": {"MODEL.SDTPS_BETA": number / 10}}
                                                 for number, name in enumerate("abcd")}))
    variants = make_variants(study, [], tmp_path)
    done = [{"name": one.name, "command": one.command, "failed": {}, "records": {"1": [], "2": []}} for one in variants]
    done[1]["failed"] = {"2": "diverged"}
    del done[2]["records"]["2"]
    done[3]["command"] += " MODEL.SDTPS_BETA 0.4"
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"title": "", "tree": "1" * 40, "seeds": [1, 2], "patterns": [], "variants": done}))
    for tree in ("1" * 40, None):
        assert [*finished_variants(path, variants, [1, 2], tree)] == ["a"]
    with pytest.raises(UserError, match=f"made with the files {'1' * 10}, but the checkout's are {'2' * 10}, .*--changed_tree"):
        finished_variants(path, variants, [1, 2], "2" * 40)


def test_the_docs_have_every_study():
    assert {path.stem for path in RESULTS} >= {path.stem for path in STUDIES}
