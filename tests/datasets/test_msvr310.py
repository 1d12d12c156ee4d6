"""MSVR310: identity folders, and what is scored."""

import pytest
from layouts import write_msvr310
from triplets import catch_message, config

from demo_sdtps.datasets import read_splits
from demo_sdtps.evaluation.protocol import exclude_key, make_test_data

NAME = ("DATASETS.NAMES", "MSVR310")


@pytest.fixture
def root(tmp_path):
    write_msvr310(tmp_path)
    return tmp_path


def keep(root, pattern):
    """Remove the test images whose names do not have `pattern`."""
    for name in ("query3", "bounding_box_test"):
        for path in (root / "MSVR310" / name).rglob("*.jpg"):
            if pattern not in path.name:
                path.unlink()


def test_matches_are_in_another_scene(root):
    """With a single scene nothing can be scored, whatever the cameras; with a single camera all can."""
    cfg = config(root, *NAME)
    assert exclude_key(cfg) == "scene"
    keep(root, "_v7_")
    actual = read_splits(cfg, ("query", "gallery"))
    assert {sample.camera for samples in actual.values() for sample in samples} == {7}
    assert len(make_test_data(cfg, actual["query"], actual["gallery"]).query) == 4

    write_msvr310(root)
    keep(root, "_s001_")
    actual = read_splits(cfg, ("query", "gallery"))
    assert {sample.camera for sample in actual["gallery"]} == {0, 1, 7}
    message = catch_message(make_test_data, cfg, actual["query"], actual["gallery"])
    assert "No query of MSVR310" in message and "with another scene" in message
