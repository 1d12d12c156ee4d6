"""All data sets that we read: what is on disk, and what is wrong there."""

import os
import shutil
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from layouts import WRITERS
from triplets import catch_message, config

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import READERS, SPLITS, identity_labels, read_splits
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


@pytest.fixture(params=READERS)
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
    assert tuple(WRITERS) == tuple(FOLDERS) == tuple(READERS)
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


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("name", SEPARATE)
def test_a_missing_image_and_a_missing_folder_of_one_modality_are_reported(tmp_path, name, number):
    paths = WRITERS[name](tmp_path)["query"][4].paths
    Path(paths[number]).unlink()
    message = complaint(tmp_path, name)
    assert f"has no {MODALITIES[number]} image: {paths[number]} is missing" in message
    assert f"such as {paths[number == 0]}" in message
    Path(paths[number - 1]).unlink()
    two = [MODALITIES[place] for place in sorted((number, (number - 1) % 3))]
    assert f"has no {' and no '.join(two)} image" in complaint(tmp_path, name)
    folder = Path(paths[number]).parent
    folder.rename(tmp_path / "elsewhere")
    assert f"The folder {folder} is missing" in complaint(tmp_path, name)


WRONG_NAMES = {
    "RGBNT201": ["portrait.jpg", "00001_cam1_0_00.jpg", "000001_cam12_0_00.jpg"],
    "RGBNT100": ["portrait.jpg", "0001_c0_001.jpg", "0001_c12_001.jpg", "-2_c1_001.jpg"],
    "MSVR310": ["0001_s001_v8_001.jpg", "0001_s001_001.jpg", "001_s001_v1_001.jpg"],
    "WMVeID863": ["portrait.jpg", "000001_cam0_0_00.jpg", "000001_c1_0_00.jpg"],
}


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_what_is_wrong_on_disk_is_refused(tmp_path, name):
    """A name that says no identity, camera or scene; two images of one name; a missing or an empty split; no data set."""
    paths = [Path(path) for path in WRITERS[name](tmp_path)["query"][7].paths]
    for wrong in WRONG_NAMES[name]:
        for path in paths:
            path.rename(path.with_name(wrong))
        assert str(paths[0].with_name(wrong)) in complaint(tmp_path, name)
        for path in paths:
            path.with_name(wrong).rename(path)
    twin = paths[-1].with_suffix(".PNG")
    shutil.copy(paths[-1], twin)
    assert twin.name in complaint(tmp_path, name)
    folder = split_folder(tmp_path, name, "query")
    folder.rename(tmp_path / "elsewhere")
    assert str(folder) in complaint(tmp_path, name)
    folder.mkdir()
    for modality in ("RGB", "NI", "TI", "vis", "ni", "th") if name != "MSVR310" else ():
        (folder / modality).mkdir()
    assert "query split" in catch_message(read, tmp_path, name, ["query"])
    message = complaint(tmp_path / "nowhere", name)
    assert READERS[name].layout in message and "DATASETS.ROOT_DIR" in message
