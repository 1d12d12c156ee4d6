"""Which files of a folder are images: links are followed, what systems hide is left out, and what cannot be read is told."""

import os

from layouts import pixels, save

from demo_sdtps.config import load_cfg
from demo_sdtps.datasets.folders import read_folder, read_folders, read_query
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
    assert names_of(tmp_path / "gallery") == ["a", "day2/deep/b", "file", "night/b"]
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


def test_siblings_are_in_folders_of_the_same_path_and_the_named_ones_come_first(tmp_path):
    for folder in ("RGB", "visible", "NI"):
        for name in ("a.png", "more/a.png"):
            save(tmp_path / folder / name, IMAGE)
    folders = read_folders(load_cfg(None, ["DATASETS.FOLDERS", "[RGB=visible]"]))
    expected = tuple(str(tmp_path / folder / "more/a.png") for folder in ("visible", "NI"))
    for triplet in (
        *read_query(tmp_path / "NI" / "more" / "a.png", folders),
        read_folder(tmp_path, folders)[1],
    ):
        assert (triplet.name, triplet.paths) == ("more/a", (*expected, None))


def test_a_link_that_leads_nowhere_is_an_image_that_cannot_be_read(tmp_path):
    save(tmp_path / "RGB" / "good.png", IMAGE)
    for name in ("lost.png", "day"):
        os.symlink(tmp_path / "nowhere" / name, tmp_path / "RGB" / name)
    triplets = read_folder(tmp_path)
    assert [one.name for one in triplets] == ["day", "good", "lost"]
    problems = unreadable([path for triplet in triplets for path in triplet.files])
    assert [*problems] == [str(tmp_path / "RGB" / name) for name in ("day", "lost.png")]
    # the next time, what was left out is not what there is
    assert [one.stamp() for one in (triplets[0], triplets[0].without(triplets[0].files))] == [
        "? - -",
        "- - -",
    ]
