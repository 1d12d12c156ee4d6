"""demo-sdtps calibrate: the pairs and the fit that it is made of, and what searches show of it."""

import json
import math
import shutil

import numpy as np
import pytest
from commands import CONFIG, KEEP_ALL, checkpoint_file, cli_args_for, copy, read_rows
from interrupted import call
from modality_sets import present_in
from numeric import generator

import demo_sdtps
from demo_sdtps.commands import search
from demo_sdtps.config import load_cfg
from demo_sdtps.config.load import with_values
from demo_sdtps.datasets import Sample, read_splits, split_validation
from demo_sdtps.retrieval.calibration import (
    Calibration,
    Labelled,
    calibration_file,
    fit,
)
from synthetic import commands as synthetic

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = (*KEEP_ALL, "MODEL.HDM", "True")
WHOLE, WHOLE_SET = "RGB+NI+TI, RGB+NI+TI", np.ones(3, bool)


def draw_pairs(same, different):
    """Distances of pairs of one identity and of different ones, which overlap."""
    draw = np.random.default_rng(generator().initial_seed())
    return draw.gamma(3, 0.1, same), draw.gamma(9, 0.12, different)


def test_the_fit_is_platts():
    """scikit-learn's logistic regression, given each pair with both labels and Platt's targets as weights."""
    from sklearn.linear_model import LogisticRegression

    pairs = draw_pairs(300, 4000)
    targets = np.repeat([301 / 302, 1 / 4002], [300, 4000])
    distances = np.concatenate(pairs)[:, None]
    model = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000).fit(
        np.concatenate([distances, distances]),
        np.repeat([1, 0], 4300),
        np.concatenate([targets, 1 - targets]),
    )
    fitted = fit(pairs)
    assert fitted["slope"] == pytest.approx(-model.coef_[0, 0], rel=1e-3)
    assert fitted["offset"] == pytest.approx(model.intercept_[0], rel=1e-3)
    actual, _ = Calibration({WHOLE: fitted}).judge(distances[:, 0], WHOLE_SET, WHOLE_SET, 0.01)
    np.testing.assert_allclose(actual, model.predict_proba(distances)[:, 1], atol=1e-4)
    small = fit((pairs[0] * 1e-4, pairs[1] * 1e-4))
    assert small["slope"] == pytest.approx(1e4 * fitted["slope"], rel=1e-3)
    assert (fitted["same"], fitted["different"]) == (300, 4000)
    assert [*fitted["limits"]] == ["0.01", "0.05"]  # ten pairs decide each
    reversed_kinds = fit(pairs[::-1])  # no model whose probability rises with the distance
    assert reversed_kinds["slope"] == 0
    assert 1 / (1 + math.exp(-reversed_kinds["offset"])) == pytest.approx(4000 / 4300, rel=1e-3)


def test_a_threshold_accepts_its_share_of_different_identities():
    """Or that of the next coarser rate that the pairs suffice for."""
    pairs = draw_pairs(100, 5000)
    calibration = Calibration({WHOLE: fit(pairs)})
    for rate, share in ((0.001, 0.01), (0.01, 0.01), (0.05, 0.05), (0.5, 1)):
        _, is_unknown = calibration.judge(pairs[1], WHOLE_SET, WHOLE_SET, rate)
        assert (~is_unknown).mean() == pytest.approx(share)


def test_sets_without_a_fit_have_no_probability():
    """And both orders of two sets have the same."""
    fits = {"RGB, NI+TI": {"slope": 2.0, "offset": 1.0, "limits": {"0.01": 0.5}}}
    one = present_in([{"RGB"}, {"NI", "TI"}, {"RGB"}])
    other = present_in([{"NI", "TI"}, {"RGB"}, {"RGB"}])
    judged = Calibration(fits).judge(np.array([[0.5, 0.51, 0.9]]), one[None], other[None], 0.01)
    np.testing.assert_allclose(judged[0], [[0.5, 1 / (1 + np.exp(0.02)), np.nan]])
    np.testing.assert_array_equal(judged[1], [[False, True, False]])


def test_pairs_of_one_identity_are_of_different_cameras():
    """Of some rows and columns."""
    draws = np.random.default_rng(generator().initial_seed())
    distances, labels = draws.random((7, 5)), [draws.integers(0, 3, 12) for _ in range(2)]
    identities, cameras = ((each[:7], each[7:]) for each in labels)
    same, different = [], []
    for i in range(2, 7):
        for j in range(5):
            if identities[0][i] != identities[1][j]:
                different.append(distances[i, j])
            elif cameras[0][i] != cameras[1][j]:
                same.append(distances[i, j])
    labelled = Labelled("RGB, NI+TI", distances, identities, cameras)
    pairs = labelled.pairs(np.arange(7) >= 2)
    assert [one.tolist() for one in pairs] == [same, different]


def test_validation_identities_are_left_out_of_the_training(tiny_root):
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root)[2:])
    whole = read_splits(cfg, ("train",))["train"]
    splits = read_splits(with_values(cfg, {"DATASETS.VALIDATION": 0.34}), ("train", "validation"))
    left, held_out = ({sample.identity for sample in splits[name]} for name in splits)
    assert len(left) == 4 and len(held_out) == 2 and left.isdisjoint(held_out)
    assert {*splits["train"], *splits["validation"]} == {*whole}
    chosen = split_validation([Sample(("x",), number) for number in range(10)], 0.3, True)
    assert [sample.identity for sample in chosen] == [4, 8, 9]  # by SHA-256


@pytest.fixture(scope="module")
def other_root(tmp_path_factory):
    """Other data: 64 triplets of eight identities for training, which the checkpoint has not seen, nor camera 7 of theirs."""
    root = tmp_path_factory.mktemp("other")
    sizes = "--identities 8 --test_identities 4 --images_per_camera 2 --height 32 --width 16"
    synthetic.triplets(["--root", str(root), *sizes.split(), "--seed", "9", "--workers", "1"])
    for path in [*root.glob("RGBNT201/train_171/*/*_cam2_*")]:
        path.rename(path.with_name(path.name.replace("cam2", "cam7")))
    return root


@pytest.fixture(scope="module")
def calibrated_weights(weights, other_root, tmp_path_factory):
    """A copy of it, calibrated on the split train of other data."""
    path = shutil.copyfile(weights, tmp_path_factory.mktemp("calibrated") / "last.pth")
    words = ("--weight", path, "--split", "train", "DATASETS.ROOT_DIR", other_root)
    assert call(words, search.calibrate) == 0
    return path


@pytest.fixture
def calibrated(calibrated_weights, tmp_path):
    """A copy of that with its calibration, and the record of this."""
    path = shutil.copyfile(calibrated_weights, tmp_path / "last.pth")
    file = shutil.copyfile(calibration_file(calibrated_weights), calibration_file(path))
    return path, json.loads(file.read_text())


def test_a_calibration_is_of_the_distances_of_the_search(calibrated, other_root):
    """Of every return pattern, other cameras as the mean of those known; for triplets of unequal sets by common columns."""
    path, record = calibrated
    reid = demo_sdtps.load(path)
    samples = read_splits(load_cfg(CONFIG, cli_args_for(other_root)[2:]), ("train",))["train"]
    rgb, ni, ti = ([sample.paths[place] for sample in samples] for place in range(3))
    identities = np.array([sample.identity for sample in samples])
    for pattern in (1, 3):
        known = {"return_pattern": pattern, "camera": [sample.camera_name for sample in samples]}
        distances = reid.distance(
            reid.features(rgb=rgb, **known), reid.features(rgb=rgb, ni=ni, ti=ti, **known)
        )
        different = distances[identities[:, None] != identities]
        fitted = record["patterns"][str(pattern)]["RGB, RGB+NI+TI"]
        assert fitted["different"] == len(different) == 64 * 56
        assert fitted["limits"]["0.05"] == pytest.approx(np.quantile(different, 0.05), rel=0.02)


def mixed_gallery(files, tmp_path):
    """Images by modality, every second triplet in RGB alone; the files are in a folder too."""
    images = {
        name: [p if name == "rgb" or n % 2 else None for n, p in enumerate(paths)]
        for name, paths in files.items()
    }
    for modality, paths in images.items():
        for number, file in enumerate(paths):
            if file:
                copy(file, tmp_path / "gallery" / modality.upper() / f"{number}.jpg")
    return images


def test_searches_show_what_the_calibration_says(calibrated, files, success, tmp_path):
    """In Python, and by the command, as CSV, as a page, and printed; none after re-ranking."""
    path, record = calibrated
    reid = demo_sdtps.load(path)
    features = reid.features(**files)
    _, distances = hits = reid.search(features[:2], features, top=3, false_accept=0.05)
    fitted = record["patterns"]["3"][WHOLE]
    expected = 1 / (1 + np.exp(fitted["slope"] * distances - fitted["offset"]))
    np.testing.assert_allclose(hits.probability, expected, rtol=1e-5)
    np.testing.assert_array_equal(hits.is_unknown, distances > fitted["limits"]["0.05"])
    thermal, visible = files["ti"][0], files["rgb"][0]
    mixed = reid.features(ti=[thermal, None], rgb=[None, visible])
    assert reid.search(mixed[:1], mixed).is_unknown.tolist() == [[False, True]]  # not in common
    for modality, paths in files.items():
        for number, file in enumerate(paths):
            copy(file, tmp_path / "gallery" / modality.upper() / f"{number}.jpg")
    words = ["--weight", path, "--gallery", tmp_path / "gallery", "--index", tmp_path / "index"]
    words += ["--query", tmp_path / "gallery", "--keep_self", "--top", 3]
    outputs = ["--csv", tmp_path / "hits.csv", "--output", tmp_path / "hits.html"]
    success(search.main, *words, "--false_accept", "0.05", *outputs)
    header, *lines = read_rows(tmp_path / "hits.csv")
    assert header == ["query", "rank", "gallery", "distance", "probability", "unknown"]
    judged = zip(lines, hits.probability.flat, hits.is_unknown.flat, strict=False)
    for line, probability, unknown in judged:
        assert float(line[4]) == pytest.approx(probability, abs=1e-4)
        assert line[5] == str(int(unknown))
    assert (tmp_path / "hits.html").read_text().count("P = ") == 3 * len(files["rgb"])
    assert success(search.main, *words).count("P = ") == 3 * len(files["rgb"])
    assert "P = " not in success(search.main, *words, "--re_rank", 3)


def test_what_is_unknown_comes_last(calibrated, files, success, tmp_path):
    """Of a mixed gallery, by a threshold for one set that its likelier triplets are beyond: in Python, of arrays and of a
    table, and by the command."""
    path, record = calibrated
    for name, offset, limit in (("RGB, RGB+NI+TI", 9.0, 1e-6), ("RGB, RGB", -9.0, 9)):
        record["patterns"]["3"][name] |= {"slope": 1.0, "offset": offset, "limits": {"0.05": limit}}
    calibration_file(path).write_text(json.dumps(record))
    reid, count = demo_sdtps.load(path), len(files["rgb"])
    gallery = reid.features(**mixed_gallery(files, tmp_path))
    query = reid.features(rgb=files["rgb"][:1])
    (far,) = reid.distance(query, gallery)
    is_unknown = [row % 2 == 1 and far[row] > 1e-6 for row in range(count)]
    expected = sorted(range(count), key=lambda row: (is_unknown[row], row % 2 == 0, far[row]))
    words = ["--weight", path, "--gallery", tmp_path / "gallery", "--index", tmp_path / "index"]
    copy(files["rgb"][0], alone := tmp_path / "query" / "RGB" / "x.jpg")
    words += ["--query", alone, "--top", count, "--csv", tmp_path / "hits.csv"]
    success(search.main, *words)
    names = [str(tmp_path / "gallery" / "RGB" / f"{row}.jpg") for row in expected]
    header, *lines = read_rows(tmp_path / "hits.csv")
    assert header[4] == "score" and [line[2] for line in lines] == names
    for place in (gallery, tmp_path / "index"):
        hits = reid.search(query, place, top=count - 2)
        assert hits.rows[0].tolist() == expected[: count - 2]
        assert hits.is_unknown[0].tolist() == [is_unknown[row] for row in expected[: count - 2]]
        scores = [far[row] + (-9 if row % 2 else 9) for row in expected[: count - 2]]
        np.testing.assert_allclose(hits.scores[0], scores, atol=1e-4)


def test_a_calibration_is_used_with_its_own_model_alone(
    calibrated, weights, files, refusal, caplog, tmp_path
):
    """Which `save_pretrained` keeps; one of other settings or weights is told, a damaged one refused."""
    path, _ = calibrated
    reid = demo_sdtps.load(path)
    features = reid.features(**files)
    reid.save_pretrained(tmp_path / "saved")
    expected = reid.search(features, features).probability
    saved = demo_sdtps.load(tmp_path / "saved").search(features, features).probability
    np.testing.assert_array_equal(saved, expected)
    assert demo_sdtps.load(weights).search(features, features).probability is None
    words = ("--gallery", files["rgb"][0].parents[1], "--query", files["rgb"][0])
    told = refusal(search.main, "--weight", weights, *words, "--false_accept", "0.01")
    assert "demo-sdtps calibrate --weight" in told
    other = demo_sdtps.load(path, "TEST.CROSS_MODAL_DISTANCE", "all")
    assert other.search(features, features).probability is None
    assert "of another configuration" in caplog.text
    checkpoint_file(path, with_values(other.cfg, {"MODEL.SDTPS_BETA": 0.4}))
    assert demo_sdtps.load(path).search(features, features).probability is None
    assert "is of other weights" in caplog.text
    calibration_file(path).write_text('{"a": 1}')
    assert calibration_file(path).name in refusal(search.main, "--weight", path, *words)


def test_identities_of_training_and_test_are_not_calibrated_on(
    weights, calibrated, other_root, refusal, tmp_path, capsys
):
    """Nor ones that another share would have left out, and no few."""
    held_out = with_values(demo_sdtps.load(weights).cfg, {"DATASETS.VALIDATION": 0.34})
    other = checkpoint_file(tmp_path / "other.pth", held_out)
    again = ("--split", "train", "DATASETS.ROOT_DIR", f"{held_out.DATASETS.ROOT_DIR}/.")
    for weight, *words in (
        (weights,),
        (weights, "--split", "query"),
        (other, *again),
        (other, "DATASETS.VALIDATION", "0.5"),
    ):
        assert "promise too much" in refusal(search.calibrate, "--weight", weight, *words)
    root = ("DATASETS.ROOT_DIR", other_root)
    assert call(("--weight", other, *root), search.calibrate) == 0
    sets = capsys.readouterr().out.rpartition("modalities: ")[2].split("; ")
    assert "RGB, RGB+NI+TI" in sets
    alone = with_values(held_out, {"DATASETS.VALIDATION": 0.13})
    other = checkpoint_file(tmp_path / "alone.pth", alone)
    assert "too few pairs" in refusal(search.calibrate, "--weight", other, *root)
    again = (calibrated[0], "--split", "train", *root)
    assert "--overwrite" in refusal(search.calibrate, "--weight", *again)
