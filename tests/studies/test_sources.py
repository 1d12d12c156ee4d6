"""Variants of a study that start or learn from the runs of another."""

from pathlib import Path

import pytest
import yaml
from commands import CONFIG, ROOT

from demo_sdtps.config import UserError
from studies.runs import steps, waves, with_run
from studies.variants import make_variants, read_study


@pytest.fixture
def variants(monkeypatch, tmp_path):
    """A study, and its variants: dense, and slim, which has `sources`."""
    monkeypatch.chdir(ROOT)

    def make(dense, runs=Path("r"), **sources):
        path, named = tmp_path / "x.yml", {"dense": {"set": dense}, "slim": sources}
        path.write_text(
            yaml.safe_dump(
                {"config": str(CONFIG), "missing": True, "variants": named}, sort_keys=False
            )
        )
        study = read_study(path)
        return study, make_variants(study, [], runs)

    return make


def test_a_variant_starts_or_learns_from_the_run_of_another_with_its_seed(variants):
    study, (dense, slim) = variants({}, start="dense", teacher="dense")
    words = steps(slim, 2, study)[0][0]
    weights = str(dense.run_folder(2) / "last.pth")
    assert words[-4:] == ["TEST.WEIGHT", weights, "MODEL.TEACHER", weights]
    assert slim.facts["command"].endswith("TEST.WEIGHT '<dense>' MODEL.TEACHER '<dense>'")
    (test, _), *_ = steps(slim, 2, study)[1:]
    assert test[test.index("MODEL.TEACHER") + 2 :][:2] == [
        "TEST.WEIGHT",
        str(slim.run_folder(2) / "last.pth"),
    ]
    others = [
        variants({}, teacher="dense"),
        variants({}, start="dense"),
        variants({"MODEL.SDTPS_BETA": 0.3}, start="dense", teacher="dense"),
    ]
    taught = [slim, *(variant for _, (_, variant) in others)]
    for place in ("configuration", "folder"):
        assert len({getattr(variant, place) for variant in taught}) == 4
    with pytest.raises(UserError, match="'slim' starts or learns from 'slim', which is no variant"):
        variants({}, teacher="slim")


def test_a_run_whose_weights_are_gone_is_made_again_for_those_that_need_it(variants, tmp_path):
    _, (dense, slim) = variants({}, runs=tmp_path, teacher="dense")
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
