"""MSVR310: identity folders, scenes, and what is scored."""

import pytest
from layouts import pixels, save, write_msvr310
from triplets import config, message_of

from demo_sdtps.datasets import read_splits
from demo_sdtps.evaluation.protocol import exclude_key, make_test_data
from demo_sdtps.evaluation.tables import reid_caption

NAME = ("DATASETS.NAMES", "MSVR310")
MODALITY_FOLDERS = ("vis", "ni", "th")


@pytest.fixture
def own(tmp_path):
    return tmp_path, write_msvr310(tmp_path)


def split_folder(root, name="bounding_box_test"):
    return root / "MSVR310" / name


def keep(root, wanted):
    """Remove the test images whose names do not satisfy `wanted`."""
    for name in ("query3", "bounding_box_test"):
        for path in split_folder(root, name).rglob("*.jpg"):
            if not wanted(path.name):
                path.unlink()


def test_identity_scene_and_camera_are_in_the_name(tmp_path):
    names = [
        "0001_s001_v0_001.jpg",
        "0001_s001_v7_002.jpg",
        "0001_s012_v3_001.jpg",
        "0310_s000_v5_010.jpg",
    ]
    for name in names:
        for modality in MODALITY_FOLDERS:
            save(
                split_folder(tmp_path, "query3") / name[:4] / modality / name,
                pixels(1, 1, "RGB", 8, 4),
            )
    actual = read_splits(config(tmp_path, *NAME), ("query",))["query"]
    said = [(sample.identity, sample.scene, sample.camera) for sample in actual]
    assert said == [(1, 1, 0), (1, 1, 7), (1, 12, 3), (310, 0, 5)]
    for sample, name in zip(actual, names, strict=True):
        folder = split_folder(tmp_path, "query3") / name[:4]
        assert sample.paths == tuple(str(folder / modality / name) for modality in MODALITY_FOLDERS)


def test_an_identity_folder_without_images_is_reported(own):
    root, _ = own
    folder = split_folder(root) / "0099"
    for modality in MODALITY_FOLDERS:
        (folder / modality).mkdir(parents=True)
    message = message_of(read_splits, config(root, *NAME))
    assert f"The identity folder {folder} holds no images; add them or remove it" in message
    assert "The gallery split of MSVR310" in message


def test_matches_are_in_another_scene(own):
    """With a single scene nothing can be scored, whatever the cameras; with a single camera all can."""
    root, _ = own
    cfg = config(root, *NAME)
    assert exclude_key(cfg) == "scene"
    keep(root, lambda name: "_v7_" in name)
    actual = read_splits(cfg, ("query", "gallery"))
    assert {sample.camera for samples in actual.values() for sample in samples} == {7}
    assert len(make_test_data(cfg, actual["query"], actual["gallery"]).query) == 4

    write_msvr310(root)
    keep(root, lambda name: "_s001_" in name)
    actual = read_splits(cfg, ("query", "gallery"))
    assert {sample.camera for sample in actual["gallery"]} == {0, 1, 7}
    message = message_of(make_test_data, cfg, actual["query"], actual["gallery"])
    assert "No query of MSVR310" in message and "with another scene" in message


def test_the_number_of_queries_with_a_match(own):
    cfg = config(own[0], *NAME)
    splits = read_splits(cfg)
    alone = splits["query"][0]
    gallery = [sample for sample in splits["gallery"] if sample.identity != alone.identity]
    data = make_test_data(cfg, splits["query"], gallery)
    assert (
        data.matched
        == sum(sample.identity != alone.identity for sample in splits["query"])
        < len(data.query)
    )
    assert f"{len(data.query)} queries, {data.matched} with a match, " in reid_caption(cfg, data)
