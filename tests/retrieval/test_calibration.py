"""demo-sdtps calibrate: the pairs and the fit that it is made of, and what searches show of it."""

import json
import math
import shutil

import numpy as np
import pytest
from commands import CONFIG, KEEP_ALL, call, checkpoint_file, cli_args_for, copy, read_rows
from numeric import generator
from ranking_cases import present_in

import demo_sdtps
from demo_sdtps.commands import search
from demo_sdtps.config import load_cfg
from demo_sdtps.config.load import with_values
from demo_sdtps.datasets import Sample, read_splits, split_validation
from demo_sdtps.retrieval.calibration import fit, select_pairs
from demo_sdtps.retrieval.nearest import Hits, probabilities
from demo_sdtps.retrieval.reid import SUFFIX
from synthetic import commands as synthetic

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = (*KEEP_ALL, "MODEL.HDM", "True")
WHOLE = "RGB+NI+TI, RGB+NI+TI"


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
    small = fit((pairs[0] * 1e-4, pairs[1] * 1e-4))
    assert small["slope"] == pytest.approx(1e4 * fitted["slope"], rel=1e-3)
    assert (fitted["same"], fitted["different"]) == (300, 4000)
    reversed_kinds = fit(pairs[::-1])  # no model whose probability rises with the distance
    assert reversed_kinds["slope"] == 0
    assert 1 / (1 + math.exp(-reversed_kinds["offset"])) == pytest.approx(4000 / 4300, rel=1e-3)


def test_sets_without_a_fit_have_no_probability():
    """Nor has row -1."""
    rgb, rest = frozenset({"RGB"}), frozenset({"NI", "TI"})
    distances = np.array([[0.5, 0.7, np.inf]])
    hits = Hits(np.array([[0, 1, -1]]), distances, distances)
    sides = present_in([rgb]), present_in([rest, rgb])
    actual = probabilities({(rgb, rest): (2.0, 1.5)}, hits, *sides)
    np.testing.assert_allclose(actual, [[1 / (1 + np.exp(-0.5)), np.nan, np.nan]])


def test_pairs_of_one_identity_are_of_different_cameras():
    draws = np.random.default_rng(generator().initial_seed())
    distances, labels = draws.random((7, 5)), [draws.integers(0, 3, 12) for _ in range(2)]
    identities, cameras = ((each[:7], each[7:]) for each in labels)
    same, different = [], []
    for i in range(7):
        for j in range(5):
            if identities[0][i] != identities[1][j]:
                different.append(distances[i, j])
            elif cameras[0][i] != cameras[1][j]:
                same.append(distances[i, j])
    pairs = select_pairs((distances, identities, cameras))
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
    file = shutil.copyfile(calibrated_weights.with_suffix(SUFFIX), path.with_suffix(SUFFIX))
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
        cameras = np.array([sample.camera for sample in samples])
        is_same = (identities[:, None] == identities) & (cameras[:, None] != cameras)
        fitted = record["patterns"][str(pattern)]["RGB, RGB+NI+TI"]
        assert fitted["different"] == len(different) == 64 * 56
        expected = fit((distances[is_same], different))
        assert fitted == pytest.approx(expected, rel=1e-3)


def test_searches_show_what_the_calibration_says(calibrated, files, success, tmp_path):
    """In Python, and by the command, as CSV, and printed; none after re-ranking."""
    path, record = calibrated
    reid = demo_sdtps.load(path)
    features = reid.features(**files)
    _, distances = hits = reid.search(features[:2], features, top=3)
    fitted = record["patterns"]["3"][WHOLE]
    expected = 1 / (1 + np.exp(fitted["slope"] * distances - fitted["offset"]))
    np.testing.assert_allclose(hits.probability, expected, rtol=1e-5)
    for modality, paths in files.items():
        for number, file in enumerate(paths):
            copy(file, tmp_path / "gallery" / modality.upper() / f"{number}.jpg")
    words = ["--weight", path, "--gallery", tmp_path / "gallery", "--index", tmp_path / "index"]
    words += ["--query", tmp_path / "gallery", "--keep_self", "--top", 3]
    success(search.main, *words, "--csv", tmp_path / "hits.csv")
    header, *lines = read_rows(tmp_path / "hits.csv")
    assert header == ["query", "rank", "gallery", "distance", "probability"]
    for line, probability in zip(lines, hits.probability.flat, strict=False):
        assert float(line[4]) == pytest.approx(probability, abs=1e-4)
    assert success(search.main, *words).count("P = ") == 3 * len(files["rgb"])
    assert "P = " not in success(search.main, *words, "--re_rank", 3)


def test_hits_of_several_sets_are_ordered_by_probability(calibrated, files):
    """Of a gallery in which every second triplet has RGB alone: the farther ones of a set may be likelier."""
    path, record = calibrated
    for name, offset in (("RGB, RGB+NI+TI", 9.0), ("RGB, RGB", -9.0)):
        record["patterns"]["3"][name] |= {"slope": 1.0, "offset": offset}
    path.with_suffix(SUFFIX).write_text(json.dumps(record))
    reid, count = demo_sdtps.load(path), len(files["rgb"])
    ni, ti = ([p if n % 2 else None for n, p in enumerate(files[name])] for name in ("ni", "ti"))
    gallery = reid.features(rgb=files["rgb"], ni=ni, ti=ti)
    query = reid.features(rgb=files["rgb"][:1])
    (far,) = reid.distance(query, gallery)
    expected = sorted(range(count), key=lambda row: (row % 2 == 0, far[row]))
    hits = reid.search(query, gallery, top=count)
    assert hits.rows[0].tolist() == expected
    scores = [far[row] + (-9 if row % 2 else 9) for row in expected]
    np.testing.assert_allclose(hits.scores[0], scores, atol=1e-4)
    assert (np.diff(hits.probability[0]) <= 0).all()


def test_a_calibration_is_used_with_its_own_model_alone(
    calibrated, weights, files, caplog, tmp_path
):
    """Which `save_pretrained` keeps; one of other settings or weights is told."""
    path, _ = calibrated
    reid = demo_sdtps.load(path)
    features = reid.features(**files)
    reid.save_pretrained(tmp_path / "saved")
    expected = reid.search(features, features).probability
    saved = demo_sdtps.load(tmp_path / "saved").search(features, features).probability
    np.testing.assert_array_equal(saved, expected)
    assert demo_sdtps.load(weights).search(features, features).probability is None
    other = demo_sdtps.load(path, "TEST.CROSS_MODAL_DISTANCE", "all")
    assert other.search(features, features).probability is None
    assert "of another configuration" in caplog.text
    checkpoint_file(path, with_values(other.cfg, {"MODEL.SDTPS_BETA": 0.4}))
    assert demo_sdtps.load(path).search(features, features).probability is None
    assert "is of other weights" in caplog.text


def test_the_identities_that_were_held_out_are_calibrated_on(
    weights, other_root, refusal, tmp_path
):
    """By default; too few are refused, and a file is replaced with --overwrite alone."""
    for share, name in ((0.34, "other.pth"), (0.13, "alone.pth")):
        cfg = with_values(demo_sdtps.load(weights).cfg, {"DATASETS.VALIDATION": share})
        checkpoint_file(tmp_path / name, cfg)
    root = ("DATASETS.ROOT_DIR", other_root)
    words = ("--weight", tmp_path / "other.pth", *root)
    assert call(words, search.calibrate) == 0
    assert "RGB, RGB+NI+TI" in (tmp_path / "other").with_suffix(SUFFIX).read_text()
    assert "--overwrite" in refusal(search.calibrate, *words)
    words = ("--weight", tmp_path / "alone.pth", *root)
    assert "fewer than 10 pairs" in refusal(search.calibrate, *words)
