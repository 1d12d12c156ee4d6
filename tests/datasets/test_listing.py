"""Which files of a folder are images: links are followed, what systems hide is left out, and what cannot be read is told."""

import os
import shlex

import pytest
from layouts import pixels, save
from triplets import catch_message

from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.folders import make_folders, read_folder, read_query
from demo_sdtps.datasets.images import unreadable

IMAGE = pixels(1, 1, "RGB", 16, 32)


def names_of(root):
    return [triplet.name for triplet in read_folder(root)]


def test_linked_folders_and_files_are_read_and_circles_end(tmp_path):
    rgb, other = tmp_path / "gallery" / "RGB", tmp_path / "other"
    save(rgb / "a.png", IMAGE)
    save(other / "deep" / "b.png", IMAGE)
    os.symlink(other, rgb / "day2")
    os.symlink(other / "deep", rgb / "night")
    os.symlink(other / "deep" / "b.png", rgb / "file.png")
    for place in (rgb / "self", other / "deep" / "up", other / "here"):
        os.symlink(rgb if place.name == "self" else other, place)
    os.symlink(tmp_path / "gallery", rgb / "root")
    names = ["a", "day2/deep/b", "file", "night/b"]
    assert names_of(tmp_path / "gallery") == sorted([*names, "night/up/deep/b"])
    os.symlink(rgb, tmp_path / "gallery" / "NI")  # a modality's folder
    for triplet in read_folder(tmp_path / "gallery"):
        rgb_path, ni_path, _ = triplet.paths
        assert os.path.samefile(rgb_path, ni_path) and rgb_path != ni_path


def test_what_systems_hide_is_no_image(tmp_path):
    hidden = ("._a.png", ".DS_Store", "@eaDir/a.png", "__MACOSX/a.png", ".hidden/a.png")
    hidden += ("#snapshot/a.png", "System Volume Information/a.png")
    for name in (*hidden, "a.png", "more/b.png", "more/._b.png", "more/@eaDir/b.png"):
        save(tmp_path / "RGB" / name, IMAGE) if name.endswith("g") else None
    assert names_of(tmp_path) == ["a", "more/b"]


def broken_files(folder):
    """Of each kind that has no pixels, beside a good one."""
    save(folder / "000001_cam1_good.png", IMAGE)
    os.symlink(folder / "lost.png", folder / "000001_cam1_lost.png")
    os.symlink(folder / "000001_cam1_self.png", folder / "000001_cam1_self.png")
    os.symlink("/nowhere/000001_cam1_day", folder / "000001_cam1_day")
    os.mkfifo(folder / "000001_cam1_pipe.png")
    return ["day", "lost", "pipe", "self"]


def test_files_without_pixels_are_listed_and_told(tmp_path):
    """A link that leads nowhere, also one of a folder, one to itself, and a FIFO, which would wait for ever."""
    broken = broken_files(tmp_path / "RGB")
    triplets = read_folder(tmp_path)
    assert [one.name.split("_")[2] for one in triplets] == sorted([*broken, "good"])
    problems = unreadable(path for triplet in triplets for path in triplet.files)
    names = [path.removesuffix(".png").rsplit("_", 1)[1] for path in problems]
    assert names == broken and all(" cannot be read (" in text for text in problems.values())
    assert "a pipe" in problems[str(tmp_path / "RGB" / "000001_cam1_pipe.png")]
    stamps = {one.name.split("_")[2]: one.stamp() for one in triplets}
    # the next time, what was left out is not what there is
    assert [stamps[name] for name in ("lost", "self", "day")] == ["? - -"] * 3
    assert {one.without(one.files).stamp() for one in triplets} == {"- - -"}


def test_a_linked_folder_of_a_modality_that_leads_nowhere_is_told(tmp_path):
    for split in ("train", "query", "gallery"):
        save(tmp_path / split / "RGB" / "000001_cam1.png", IMAGE)
    os.symlink("/nowhere/NI", tmp_path / "query" / "NI")
    expected = "query/NI is a link that leads nowhere; correct or remove it"
    assert expected in catch_message(read_folder, tmp_path / "query")
    words = shlex.split(
        f"DATASETS.NAMES Folder DATASETS.ROOT_DIR {tmp_path} MODEL.MODALITIES [RGB,NI]"
    )
    assert expected in catch_message(read_splits, load_cfg(None, words))


@pytest.mark.parametrize("name", ["._a.png", "x.png"])
def test_an_image_that_is_asked_for_is_read_whatever_its_name(tmp_path, name):
    for each in (name, "a.png", "more/a.png"):
        save(tmp_path / "RGB" / each, IMAGE)
    (triplet,) = read_query(tmp_path / "RGB" / name)
    assert triplet.paths == (str(tmp_path / "RGB" / name), None, None)


def test_siblings_are_in_folders_of_the_same_path_and_the_named_ones_come_first(tmp_path):
    for folder in ("RGB", "visible", "NI"):
        for name in ("a.png", "more/a.png"):
            save(tmp_path / folder / name, IMAGE)
    folders = make_folders(["RGB=visible"])
    expected = tuple(str(tmp_path / folder / "more/a.png") for folder in ("visible", "NI"))
    for triplet in (
        *read_query(tmp_path / "NI" / "more" / "a.png", folders),
        read_folder(tmp_path, folders)[1],
    ):
        assert (triplet.name, triplet.paths) == ("more/a", (*expected, None))
