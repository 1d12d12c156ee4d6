"""All data sets that we read: what is on disk, and what is wrong there."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from commands import ROOT
from layouts import WRITERS, write_triplet
from triplets import catch_message, config

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import NAMES, READERS, SPLITS, identity_labels, read_splits
from demo_sdtps.datasets.base import endings

FOLDERS = {
    "RGBNT201": ("RGBNT201/train_171", "RGBNT201/test", "RGBNT201/test"),
    "RGBNT100": tuple(
        f"RGBNT100/rgbir/{name}" for name in ("bounding_box_train", "query", "bounding_box_test")
    ),
    "MSVR310": tuple(
        f"MSVR310/{name}" for name in ("bounding_box_train", "query3", "bounding_box_test")
    ),
    "WMVeID863": tuple(f"MSVWild863/{name}" for name in ("train", "query", "test")),
    "Synthetic": tuple(f"synthetic/RGBNT201/{name}" for name in ("train_171", "test", "test")),
}
"""Where each data set has its splits (docs/train.md)."""
SEPARATE = ("RGBNT201", "MSVR310", "WMVeID863")
"""Those with a folder for each modality."""


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def read(root, name, splits=SPLITS):
    return read_splits(config(root, "DATASETS.NAMES", name), splits)


def split_folder(root, name, split):
    return root / FOLDERS[name][SPLITS.index(split)]


def complaint(root, name):
    message = catch_message(read, root, name)
    assert "\n" not in message
    return message


def test_samples_are_what_was_written(tmp_path, name):
    assert tuple(WRITERS) == tuple(FOLDERS) == NAMES == tuple(READERS)
    expected = WRITERS[name](tmp_path)
    actual = read(tmp_path, name)
    assert list(actual) == list(SPLITS) and actual == expected
    for split in SPLITS:
        paths = [sample.paths for sample in actual[split]]
        assert paths == sorted(paths) and len(set(paths)) == len(paths)
        folder = split_folder(tmp_path, name, split)
        assert all(Path(path).is_relative_to(folder) for triplet in paths for path in triplet)
    assert {sample.camera for sample in actual["train"]} == {0, 1, 7}
    assert identity_labels(actual["train"]) == {1: 0, 3: 1, 4: 2, 12: 3, 20: 4}
    assert {sample.identity for sample in actual["query"]} == {2, 7, 30, 31}


def test_only_the_splits_asked_for_are_read(tmp_path, name):
    expected = WRITERS[name](tmp_path)["query"]
    split_folder(tmp_path, name, "train").rename(tmp_path / "elsewhere")
    assert read(tmp_path, name, ("query",)) == {"query": expected}


def test_other_files_are_not_read(tmp_path, name):
    expected = WRITERS[name](tmp_path)
    for folder, _, _ in list(os.walk(tmp_path)):
        for file in ("Thumbs.db", "._0001.jpg"):  # of Windows and of macOS
            (Path(folder) / file).write_bytes(b"x")
    assert read(tmp_path, name) == expected


def test_any_ending_of_an_image_is_read_in_the_same_order(tmp_path, name):
    """Also where the images of a triplet differ in it: the samples are those of .jpg."""
    expected = WRITERS[name](tmp_path)
    files = sorted(
        {path for samples in expected.values() for sample in samples for path in sample.paths}
    )
    suffixes = cycle([*sorted(endings()), ".JPG", ".Png"])
    names = {path: str(Path(path).with_suffix(next(suffixes))) for path in files}
    for path, new in names.items():
        os.rename(path, new)
    assert read(tmp_path, name) == {
        split: [
            replace(sample, paths=tuple(names[path] for path in sample.paths)) for sample in samples
        ]
        for split, samples in expected.items()
    }


def test_two_images_of_one_name_are_refused(tmp_path, name):
    path = Path(WRITERS[name](tmp_path)["gallery"][3].paths[-1])
    shutil.copy(path, path.with_suffix(".PNG"))
    assert (
        f"The folder {path.parent} has both {path.stem}.PNG and {path.stem}.jpg, which"
        in complaint(tmp_path, name)
    )


def test_a_missing_data_set_is_reported_with_what_to_do(tmp_path, name):
    message = complaint(tmp_path, name)
    first = "synthetic/RGBNT201" if name == "Synthetic" else FOLDERS[name][0].split("/")[0]
    for phrase in (
        f"The data set {name} is not at {tmp_path / first};",
        READERS[name].layout,
        "correct DATASETS.ROOT_DIR",
    ):
        assert phrase in message
    # the synthetic images have RGBNT201's layout
    assert ("make demo" in message) == (name in ("RGBNT201", "Synthetic"))


@pytest.mark.parametrize("split", SPLITS)
def test_a_missing_split_and_one_without_images_are_reported(tmp_path, name, split):
    WRITERS[name](tmp_path)
    folder = split_folder(tmp_path, name, split)
    folder.rename(tmp_path / "elsewhere")
    message = catch_message(read, tmp_path, name, [split])
    assert f"The folder {folder}" in message and "is missing" in message
    assert f"The {split} split of {name}" in message and READERS[name].layout in message
    for path in (tmp_path / "elsewhere").rglob("*"):
        # an empty identity folder has a sentence of its own
        if path.is_dir() and name != "MSVR310":
            (folder / path.relative_to(tmp_path / "elsewhere")).mkdir(parents=True)
    folder.mkdir(parents=True, exist_ok=True)
    assert "is empty" in catch_message(read, tmp_path, name, [split])


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("name", SEPARATE)
def test_a_missing_image_and_a_missing_folder_of_one_modality_are_reported(tmp_path, name, number):
    paths = WRITERS[name](tmp_path)["query"][4].paths
    Path(paths[number]).unlink()
    message = complaint(tmp_path, name)
    assert f"has no {MODALITIES[number]} image: {paths[number]} is missing" in message
    assert f"such as {paths[number == 0]}" in message and f"The query split of {name}" in message
    Path(paths[number - 1]).unlink()
    two = [MODALITIES[place] for place in sorted((number, (number - 1) % 3))]
    assert f"has no {' and no '.join(two)} image" in complaint(tmp_path, name)
    folder = Path(paths[number]).parent
    folder.rename(tmp_path / "elsewhere")
    assert f"The folder {folder} is missing" in complaint(tmp_path, name)


WRONG_NAMES = {
    "RGBNT201": (
        "000001_cam1_0_00.jpg",
        ["portrait.jpg", "00001_cam1_0_00.jpg", "000001_cam12_0_00.jpg"],
    ),
    "RGBNT100": (
        "0001_c1_001.jpg",
        ["portrait.jpg", "0001_c0_001.jpg", "0001_c12_001.jpg", "-2_c1_001.jpg"],
    ),
    "MSVR310": (
        "0001_s001_v1_001.jpg",
        ["portrait.jpg", "0001_s001_v8_001.jpg", "0001_s001_001.jpg", "001_s001_v1_001.jpg"],
    ),
    "WMVeID863": (
        "000001_cam1_0_00.jpg",
        ["portrait.jpg", "000001_cam0_0_00.jpg", "000001_c1_0_00.jpg"],
    ),
}


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_name_that_says_no_identity_camera_or_scene_is_reported(tmp_path, name):
    example, wrong_names = WRONG_NAMES[name]
    paths = [Path(path) for path in WRITERS[name](tmp_path)["query"][7].paths]
    for wrong in wrong_names:
        for path in paths:
            path.rename(path.with_name(wrong))
        message = complaint(tmp_path, name)
        assert (
            f"The image {paths[0].with_name(wrong)} does not follow" in message
            and f"such as {example}" in message
        )
        for path in paths:
            path.with_name(wrong).rename(path)


# The document


@pytest.mark.slow
def test_the_documents_own_data_set_is_one_file_and_one_line(tmp_path):
    """A copy of the packages with what docs/develop.md adds to them reads a data set as it describes."""
    text = (ROOT / "docs" / "develop.md").read_text(encoding="utf-8")
    reader, line = (
        block
        for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        if "Parking" in block
    )
    copied = tmp_path / "demo_sdtps"
    for package in ("", "config", "datasets", "runtime"):
        (copied / package).mkdir()
        for path in (ROOT / "demo_sdtps" / package).glob("*.py"):
            (copied / package / path.name).write_bytes(path.read_bytes())
    assert not (copied / "datasets" / "parking.py").exists() and "`datasets/parking.py`" in text
    (copied / "datasets" / "parking.py").write_text(reader, encoding="utf-8")
    registry = copied / "datasets" / "__init__.py"
    last = '    "WMVeID863",\n'
    assert registry.read_text().count(last) == 1 and line.count("\n") == 1
    registry.write_text(registry.read_text().replace(last, last + line))

    for split in ("learn", "ask", "park"):
        for number in (2, 1):
            write_triplet(
                tmp_path / "Parking" / split,
                ("colour", "near", "thermal"),
                f"17-{number}-0001.jpg",
                17,
                number,
            )
    program = (
        "import json\nfrom demo_sdtps.config import load_cfg\nfrom demo_sdtps.datasets import read_splits\n"
        "cfg = load_cfg(None, ['DATASETS.NAMES', 'Parking', 'DATASETS.ROOT_DIR', '.'])\n"
        "print(json.dumps({split: [[*s.paths, s.identity, s.camera] for s in samples]"
        " for split, samples in read_splits(cfg).items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        split: [
            [
                *(
                    f"Parking/{folder}/{modality}/17-{camera + 1}-0001.jpg"
                    for modality in ("colour", "near", "thermal")
                ),
                17,
                camera,
            ]
            for camera in (0, 1)
        ]
        for split, folder in (("train", "learn"), ("query", "ask"), ("gallery", "park"))
    }
