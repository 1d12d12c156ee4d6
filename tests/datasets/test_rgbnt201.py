"""The reader of RGBNT201: what is on disk, and what is wrong there."""

from pathlib import Path

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
            assert sample.paths == tuple(
                str(images_of(tiny_root, folder, modality) / name) for modality in MODALITIES
            )
            assert (sample.identity, sample.camera) == (int(name[:6]), int(name[10]) - 1)
    assert len(splits["train"]) == 6 * 8 and len(splits["query"]) == 4 * 8
    assert {sample.identity for sample in splits["train"]} == {1, 2, 3, 4, 5, 6}
    assert {sample.camera for sample in splits["train"]} == {0, 1, 2, 3}
    assert splits["query"] == splits["gallery"]


def test_what_is_no_image_of_a_modality_is_not_read(own_root):
    expected = read_splits(config(own_root))
    assert (own_root / "RGBNT201" / "train_171" / "MASK").is_dir()
    (images_of(own_root) / "Thumbs.db").write_bytes(b"x")
    (own_root / "RGBNT201" / "readme.txt").write_text("x")
    assert read_splits(config(own_root)) == expected


def test_a_name_may_go_on_as_it_likes_after_the_camera(own_root):
    for modality in MODALITIES:
        (images_of(own_root, modality=modality) / FIRST).rename(
            images_of(own_root, modality=modality) / "000258_cam3_1_seq02_07.jpg"
        )
    actual = read_splits(config(own_root), ("train",))["train"]
    assert (actual[-1].identity, actual[-1].camera) == (258, 2)
    assert len(identity_labels(actual)) == 7


def test_labels_count_identities_in_order():
    samples = [Sample(("a", "b", "c"), identity, 0) for identity in (30, 7, 30, 258, 7)]
    assert identity_labels(samples) == {7: 0, 30: 1, 258: 2}


def test_two_missing_images_of_a_triplet_are_reported_together(own_root):
    for modality in ("RGB", "TI"):
        (images_of(own_root, modality=modality) / FIRST).unlink()
    assert "has no RGB and no TI image" in message_of(read_splits, config(own_root))
