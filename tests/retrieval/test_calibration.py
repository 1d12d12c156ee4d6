"""demo-sdtps calibrate: the pairs that it is made of, and what searches show of it."""

import json
import math
import shutil
from collections import Counter

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
from demo_sdtps.retrieval.calibrate import MOST, Block, thin_out
from demo_sdtps.retrieval.calibration import Calibration, calibration_file
from synthetic import commands as synthetic

pytestmark = pytest.mark.usefixtures("shallow")
SETTINGS = (*KEEP_ALL, "MODEL.HDM", "True")
WHOLE, WHOLE_SET = "RGB+NI+TI, RGB+NI+TI", np.ones(3, bool)


def test_sets_without_a_fit_have_no_probability():
    """And both orders of two sets have the same."""
    calibration = Calibration(
        {"RGB, NI+TI": {"slope": 2.0, "offset": 1.0, "limits": {"0.01": 0.5}}}
    )
    one, other = (
        present_in([{"RGB"}, {"NI", "TI"}, {"RGB"}]),
        present_in([{"NI", "TI"}, {"RGB"}, {"RGB"}]),
    )
    judged = calibration.judge(np.array([[0.5, 0.51, 0.9]]), one[None], other[None], 0.01)
    expected = [[0.5, 1 / (1 + np.exp(0.02)), np.nan]]
    np.testing.assert_allclose(judged[0], expected)
    np.testing.assert_array_equal(judged[1], [[False, True, False]])


def test_pairs_of_one_identity_are_of_different_cameras():
    draw = np.random.default_rng(generator().initial_seed())
    labels = [tuple(draw.integers(0, 3, size) for size in (7, 5)) for _ in range(2)]
    block = Block(3, WHOLE, draw.random((7, 5)), *labels)
    rows = draw.random(7) < 0.7
    same, different = [], []
    for i in np.flatnonzero(rows):
        for j in range(5):
            if labels[0][0][i] != labels[0][1][j]:
                different.append(block.distances[i, j])
            elif labels[1][0][i] != labels[1][1][j]:
                same.append(block.distances[i, j])
    actual = block.pairs(rows)
    assert [one.tolist() for one in actual] == [same, different]


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
    words = ("--weight", path, "--split", "train", "--test", "DATASETS.ROOT_DIR", other_root)
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
    for pattern in (1, 3):
        known = {"return_pattern": pattern, "camera": [sample.camera_name for sample in samples]}
        one = reid.features(rgb=rgb, **known)
        other = reid.features(rgb=rgb, ni=ni, ti=ti, **known)
        distances = reid.distance(one, other)
        different = [
            distances[i, j]
            for i, a in enumerate(samples)
            for j, b in enumerate(samples)
            if a.identity != b.identity
        ]
        fitted = record["patterns"][str(pattern)]["RGB, RGB+NI+TI"]
        assert fitted["different"] == len(different) == 64 * 56
        assert fitted["limits"]["0.05"] == pytest.approx(np.quantile(different, 0.05), rel=0.02)
    assert record["test"]["3"].keys() == record["patterns"]["3"].keys()


def test_searches_show_what_the_calibration_says(calibrated, files, success, tmp_path):
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
    for line, probability, unknown in zip(
        lines, hits.probability.flat, hits.is_unknown.flat, strict=False
    ):
        assert float(line[4]) == pytest.approx(probability, abs=1e-4)
        assert line[5] == str(int(unknown))
    page = (tmp_path / "hits.html").read_text()
    assert page.count("P = ") == 3 * len(files["rgb"])
    assert page.count(', unknown"]') == hits.is_unknown.sum() + sum(
        line[5] == "1" for line in lines[6:]
    )
    stdout = success(search.main, *words)
    assert stdout.count("P = ") == 3 * len(files["rgb"])
    assert "P = " not in success(search.main, *words, "--re_rank", 3)


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_hits_of_a_mixed_gallery_are_in_the_order_of_their_probabilities(
    calibrated, files, success, tmp_path, first
):
    """In Python and by the command: those of the likelier set, every second one, come first, and then the nearest; also where
    RGB alone is compared in both."""
    path, record = calibrated
    for place, name in ((0, "RGB, RGB+NI+TI"), (1, WHOLE), (1, "RGB, RGB")):
        offset = 9.0 if place == first else -9.0
        record["patterns"]["3"][name] |= {"slope": 1.0, "offset": offset, "limits": {"0.05": 9}}
    calibration_file(path).write_text(json.dumps(record))
    reid, count = demo_sdtps.load(path), len(files["rgb"])
    others = {
        name: [file if number % 2 else None for number, file in enumerate(files[name])]
        for name in ("ni", "ti")
    }
    for modality, paths in ({"rgb": files["rgb"]} | others).items():
        for number, file in enumerate(paths):
            if file:
                copy(file, tmp_path / "gallery" / modality.upper() / f"{number}.jpg")
    gallery = reid.features(rgb=files["rgb"], **others)
    for shown, likelier in (({"rgb": files["rgb"]}, 1 - first), (files, first)):
        query = reid.features(**shown)
        expected = [
            sorted(range(count), key=lambda row: (row % 2 != likelier, line[row]))
            for line in reid.distance(query, gallery)
        ]
        assert reid.search(query, gallery, top=count).rows.tolist() == expected
    words = ["--weight", path, "--gallery", tmp_path / "gallery", "--top", count]
    words += ["--query", files["rgb"][0], "--index", tmp_path / "index", "--keep_self"]
    success(search.main, *words, "--csv", tmp_path / "hits.csv")
    header, *lines = read_rows(tmp_path / "hits.csv")
    assert header[3:] == ["distance", "score", "probability", "unknown"]
    hits = [line[2] for line in lines]
    assert hits == [str(tmp_path / "gallery" / "RGB" / f"{row}.jpg") for row in expected[0]]
    for line in lines:
        odds = math.log(float(line[5]) / (1 - float(line[5])))
        assert float(line[4]) == pytest.approx(-odds, abs=0.02)
    assert [float(line[4]) for line in lines] == sorted(float(line[4]) for line in lines)


def test_what_is_unknown_comes_last(calibrated, files, success, tmp_path):
    """Of a mixed gallery, by a threshold for one set that its likelier triplets are beyond: in Python, of arrays and of a
    table, and by the command, whose page says so, and which threshold is coarser than asked for."""
    path, record = calibrated
    for name, offset, limit in (("RGB, RGB+NI+TI", 9.0, 1e-6), ("RGB, RGB", -9.0, 9)):
        record["patterns"]["3"][name] |= {"slope": 1.0, "offset": offset, "limits": {"0.05": limit}}
    calibration_file(path).write_text(json.dumps(record))
    reid, count = demo_sdtps.load(path), len(files["rgb"])
    for modality, paths in files.items():
        for number, file in enumerate(paths):
            if modality == "rgb" or number % 2:
                copy(file, tmp_path / "gallery" / modality.upper() / f"{number}.jpg")
    others = {
        name: [p if n % 2 else None for n, p in enumerate(files[name])] for name in ("ni", "ti")
    }
    gallery, query = reid.features(rgb=files["rgb"], **others), reid.features(rgb=files["rgb"][:1])
    (far,) = reid.distance(query, gallery)
    is_unknown = [row % 2 == 1 and far[row] > 1e-6 for row in range(count)]
    expected = sorted(range(count), key=lambda row: (is_unknown[row], row % 2 == 0, far[row]))
    words = ["--weight", path, "--gallery", tmp_path / "gallery", "--index", tmp_path / "index"]
    copy(files["rgb"][0], alone := tmp_path / "query" / "RGB" / "x.jpg")
    words += ["--query", alone]
    page = ("--csv", tmp_path / "hits.csv", "--output", tmp_path / "hits.html")
    stdout = success(search.main, *words, "--top", count, *page)
    assert "Thresholds coarser than 0.01, by too few labelled pairs: RGB (5%)" in stdout
    names = [str(tmp_path / "gallery" / "RGB" / f"{row}.jpg") for row in expected]
    assert [line[2] for line in read_rows(tmp_path / "hits.csv")[1:]] == names
    text = (tmp_path / "hits.html").read_text()
    assert "and so last" in text and "Thresholds coarser than 0.01" in text
    for place in (gallery, tmp_path / "index"):
        for top in (count, count - 2):
            hits = reid.search(query, place, top=top)
            assert hits.rows[0].tolist() == expected[:top]
            assert hits.is_unknown[0].tolist() == [is_unknown[row] for row in expected[:top]]
            scores = [far[row] + (-9 if row % 2 else 9) for row in expected[:top]]
            np.testing.assert_allclose(hits.scores[0], scores, atol=1e-4)


def test_a_saved_model_keeps_its_calibration(calibrated, files, tmp_path):
    reid = demo_sdtps.load(calibrated[0])
    reid.save_pretrained(tmp_path / "saved")
    saved = demo_sdtps.load(tmp_path / "saved")
    features = reid.features(**files)
    expected = reid.search(features, features).probability
    np.testing.assert_array_equal(saved.search(features, features).probability, expected)


def test_without_its_own_calibration_nothing_of_it_is_shown(
    calibrated, weights, files, refusal, caplog
):
    """There is none, or it is of other settings or weights; the two latter are told."""
    path, _ = calibrated
    reid = demo_sdtps.load(weights)
    features = reid.features(**files)
    hits = reid.search(features, features)
    assert hits.probability is None and hits.is_unknown is None and len(hits) == 2
    sentence = refusal(
        search.main,
        *("--weight", weights, "--gallery", files["rgb"][0].parents[1]),
        *("--query", files["rgb"][0], "--false_accept", "0.01"),
    )
    assert "demo-sdtps calibrate --weight" in sentence
    other = demo_sdtps.load(path, "TEST.CROSS_MODAL_DISTANCE", "all")
    assert other.search(features, features).probability is None
    assert "of another value of TEST.CROSS_MODAL_DISTANCE" in caplog.text
    checkpoint_file(path, with_values(other.cfg, {"MODEL.SDTPS_BETA": 0.4}))
    assert demo_sdtps.load(path).search(features, features).probability is None
    assert "is of other weights" in caplog.text


def test_identities_of_training_and_test_are_not_calibrated_on(
    weights, calibrated, other_root, refusal, tmp_path, capsys
):
    """Nor ones that another share would have left out."""
    word = "--weight"
    assert "DATASETS.VALIDATION 0.3" in refusal(search.calibrate, word, weights)
    for split in ("train", "query"):
        assert "promises too much" in refusal(search.calibrate, word, weights, "--split", split)
    held_out = with_values(demo_sdtps.load(weights).cfg, {"DATASETS.VALIDATION": 0.34})
    other = checkpoint_file(tmp_path / "other.pth", held_out)
    share = ("DATASETS.VALIDATION", "0.5")
    again = ("--split", "train", "DATASETS.ROOT_DIR", f"{held_out.DATASETS.ROOT_DIR}/.")
    assert "promises too much" in refusal(search.calibrate, word, other, *again)
    assert "trained with 0.34" in refusal(search.calibrate, word, other, *share)
    root = ("DATASETS.ROOT_DIR", other_root)
    assert call((word, other, *root), search.calibrate) == 0
    stdout = capsys.readouterr().out
    assert "RGB, RGB+NI+TI" in stdout and "(5%)" in stdout
    assert (
        "threshold: RGB, RGB has 72 pairs of one identity by different cameras and 192 of" in stdout
    )
    alone = with_values(held_out, {"DATASETS.VALIDATION": 0.13})
    other = checkpoint_file(tmp_path / "alone.pth", alone)
    message = refusal(search.calibrate, word, other, *root)
    assert "too few pairs of triplets, 10 and 200 are needed" in message
    assert (
        f"{WHOLE} has " in message and " pairs of one identity by different cameras and " in message
    )
    again = (word, calibrated[0], "--split", "train", *root)
    assert "--overwrite" in refusal(search.calibrate, *again)


def test_a_damaged_calibration_is_told(calibrated, refusal, files):
    path, _ = calibrated
    for text in ("[1]", '{"a": 1}', "{"):
        calibration_file(path).write_text(text)
        words = ("--weight", path, "--gallery", files["rgb"][0].parents[1])
        sentence = refusal(search.main, *words, "--query", files["rgb"][0])
        assert "run demo-sdtps calibrate again, or remove it" in sentence


def test_many_images_of_few_identities_are_thinned_out():
    samples = [Sample((f"{place}",), place % 3, 0) for place in range(9000)]
    chosen = thin_out(samples)
    assert Counter(sample.identity for sample in chosen) == dict.fromkeys(range(3), MOST // 3)
    assert len(thin_out(samples[:50])) == 50
