"""The reader of RGBNT201: what is on disk, and what is wrong there."""
from pathlib import Path

import pytest
from triplets import FIRST, config, images_of, message_of

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import SPLITS, identity_labels, read_splits
from demo_sdtps.datasets.base import Sample


def test_samples_are_what_the_files_are(tiny_root):
    splits = read_splits(config(tiny_root))
    assert list(splits) == list(SPLITS)
    for split, folder in (("train", "train_171"), ("query", "test"), ("gallery", "test")):
        names = sorted(path.name for path in images_of(tiny_root, folder).iterdir())
        assert [Path(sample.paths[0]).name for sample in splits[split]] == names
        for sample, name in zip(splits[split], names, strict=True):
            assert sample.paths == tuple(str(images_of(tiny_root, folder, modality) / name) for modality in MODALITIES)
            assert (sample.identity, sample.camera) == (int(name[:6]), int(name[10]) - 1)
    assert len(splits["train"]) == 6 * 8 and len(splits["query"]) == 4 * 8
    assert {sample.identity for sample in splits["train"]} == {1, 2, 3, 4, 5, 6}
    assert {sample.camera for sample in splits["train"]} == {0, 1, 2, 3}
    assert splits["query"] == splits["gallery"]


def test_only_the_splits_asked_for_are_read(own_root):
    for modality in MODALITIES:
        for path in images_of(own_root, modality=modality).iterdir():
            path.unlink()
    assert list(read_splits(config(own_root), ("query",))) == ["query"]


def test_what_is_no_image_of_a_modality_is_not_read(own_root):
    expected = read_splits(config(own_root))
    assert (own_root / "RGBNT201" / "train_171" / "MASK").is_dir()
    (images_of(own_root) / "Thumbs.db").write_bytes(b"x")
    (own_root / "RGBNT201" / "readme.txt").write_text("x")
    assert read_splits(config(own_root)) == expected


def test_a_name_may_go_on_as_it_likes_after_the_camera(own_root):
    for modality in MODALITIES:
        (images_of(own_root, modality=modality) / FIRST).rename(
            images_of(own_root, modality=modality) / "000258_cam3_1_seq02_07.jpg")
    found = read_splits(config(own_root), ("train",))["train"]
    assert (found[-1].identity, found[-1].camera) == (258, 2)
    assert len(identity_labels(found)) == 7


def test_labels_count_identities_in_order():
    samples = [Sample(("a", "b", "c"), identity, 0) for identity in (30, 7, 30, 258, 7)]
    assert identity_labels(samples) == {7: 0, 30: 1, 258: 2}


def test_a_missing_data_set_is_reported_with_what_to_do(tmp_path):
    message = message_of(read_splits, config(tmp_path))
    for part in (str(tmp_path / "RGBNT201"), "DATASETS.ROOT_DIR", "{train_171,test}/{RGB,NI,TI}", FIRST, "make demo"):
        assert part in message


def test_the_folder_itself_in_place_of_its_parent_is_reported(tiny_root):
    message = message_of(read_splits, config(tiny_root / "RGBNT201"))
    assert "set DATASETS.ROOT_DIR to its parent folder" in message


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize(("split", "folder"), [("train", "train_171"), ("query", "test")])
def test_a_missing_modality_folder_is_reported(own_root, modality, split, folder):
    images_of(own_root, folder, modality).rename(own_root / "elsewhere")
    message = message_of(read_splits, config(own_root))
    assert str(images_of(own_root, folder, modality)) in message and "is missing" in message
    assert split in message and "{RGB,NI,TI}" in message


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_missing_image_of_one_modality_is_reported(own_root, modality):
    (images_of(own_root, modality=modality) / FIRST).unlink()
    message = message_of(read_splits, config(own_root))
    assert str(images_of(own_root, modality=modality) / FIRST) + " is missing" in message
    there = next(other for other in MODALITIES if other != modality)
    assert f"has no {modality} image" in message and f"such as {images_of(own_root, modality=there) / FIRST}" in message


def test_two_missing_images_of_a_triplet_are_reported_together(own_root):
    for modality in ("RGB", "TI"):
        (images_of(own_root, modality=modality) / FIRST).unlink()
    assert "has no RGB and no TI image" in message_of(read_splits, config(own_root))


@pytest.mark.parametrize(("split", "folder"), [("train", "train_171"), ("query", "test")])
def test_an_empty_split_is_reported(own_root, split, folder):
    for modality in MODALITIES:
        for path in images_of(own_root, folder, modality).iterdir():
            path.unlink()
    message = message_of(read_splits, config(own_root))
    assert f"{split} split" in message and "is empty" in message and str(own_root / "RGBNT201") in message
    assert "{train_171,test}" in message


@pytest.mark.parametrize("name", ["portrait.jpg", "00001_cam1_0_00.jpg", "000001_c1_0_00.jpg", "000001_camX_0.jpg",
                                  "000001_cam0_0_00.jpg", "000001_cam12_0_00.jpg"])
def test_a_name_that_says_no_identity_or_camera_is_reported(own_root, name):
    for modality in MODALITIES:
        folder = images_of(own_root, modality=modality)
        (folder / FIRST).rename(folder / name)
    message = message_of(read_splits, config(own_root))
    assert str(images_of(own_root) / name) in message and FIRST in message and "rename or remove" in message
