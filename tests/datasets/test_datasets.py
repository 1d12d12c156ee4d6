"""The published data sets: what is on disk, what is wrong there, what is scored; and synthetic pedestrians beside them."""

import os
import shlex
import shutil
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from numeric import assert_close
from PIL import Image
from triplets import (
    SCALED,
    WRITERS,
    catch_message,
    config,
    normalise,
    write_msvr310,
    write_rgbnt100,
    write_rgbnt201,
)

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import READERS, SPLITS, identity_labels, read_splits
from demo_sdtps.datasets.base import endings
from demo_sdtps.datasets.loaders import batches, test_loader
from demo_sdtps.evaluation.protocol import exclude_key, make_test_data

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


MSVR310 = ("DATASETS.NAMES", "MSVR310")


def keep(root, pattern):
    """Remove the test images whose names do not have `pattern`."""
    for name in ("query3", "bounding_box_test"):
        for path in (root / "MSVR310" / name).rglob("*.jpg"):
            if pattern not in path.name:
                path.unlink()


def test_matches_are_in_another_scene(tmp_path):
    """With a single scene nothing can be scored, whatever the cameras; with a single camera all can."""
    write_msvr310(tmp_path)
    cfg = config(tmp_path, *MSVR310)
    assert exclude_key(cfg) == "scene"
    keep(tmp_path, "_v7_")
    actual = read_splits(cfg, ("query", "gallery"))
    assert {sample.camera for samples in actual.values() for sample in samples} == {7}
    assert len(make_test_data(cfg, actual["query"], actual["gallery"]).query) == 4

    write_msvr310(tmp_path)
    keep(tmp_path, "_s001_")
    actual = read_splits(cfg, ("query", "gallery"))
    assert {sample.camera for sample in actual["gallery"]} == {0, 1, 7}
    message = catch_message(make_test_data, cfg, actual["query"], actual["gallery"])
    assert "No query of MSVR310" in message and "with another scene" in message


def read_parts(path):
    """The image's three parts as PIL and numpy see them, (256, 128) each."""
    with Image.open(path) as image:
        whole = np.asarray(image.convert("RGB"))
    return [
        torch.from_numpy(whole[:, start : start + 256].copy()).permute(2, 0, 1)
        for start in (0, 256, 512)
    ]


@pytest.mark.parametrize("cache", ["yes", "no"])
def test_batches_hold_the_three_parts_of_rgbnt100(tmp_path, cache):
    write_rgbnt100(tmp_path)
    sizes = shlex.split("INPUT.SIZE_TRAIN [128,256] INPUT.SIZE_TEST [128,256]")
    cfg = config(tmp_path, "DATASETS.NAMES", "RGBNT100", *sizes, "DATASETS.CACHE", cache)
    samples = read_splits(cfg, ("query",))["query"]
    images = [batch.images for batch in batches(test_loader(cfg, samples))]
    for number, modality in enumerate(("RGB", "NI", "TI")):
        expected = torch.stack([read_parts(sample.paths[0])[number] for sample in samples])
        actual = torch.cat([batch[modality] for batch in images])
        assert_close(actual, normalise(expected), *SCALED)


FORMER = ("DATASETS.NAMES", "RGBNT201")
"""The name of the drawn pedestrians in configurations and checkpoints of a former version."""


@pytest.fixture
def data(tiny_root, tmp_path):
    """A folder with synthetic/, as `make demo` fills it."""
    shutil.copytree(tiny_root, tmp_path / "data" / "synthetic")
    return tmp_path / "data"


def test_the_drawn_pedestrians_are_read_and_not_a_real_data_set_beside_them(data):
    """In their folder, with the file that says what they are or without, and beside it."""
    write_rgbnt201(data)
    actual = read_splits(config(data))
    assert {split: len(samples) for split, samples in actual.items()} == {
        "train": 48,
        "query": 32,
        "gallery": 32,
    }
    assert actual == read_splits(config(data / "synthetic"))
    assert actual == read_splits(config(data / "synthetic", *FORMER))
    assert actual != read_splits(config(data, *FORMER))
    (data / "synthetic" / "RGBNT201" / "synthetic.json").unlink()
    assert actual == read_splits(config(data)) == read_splits(config(data / "synthetic"))
