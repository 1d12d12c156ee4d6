"""Labels in names and tables are whole, or refused; which files of a folder are images (docs/own_data.md)."""

import os
import re
import unicodedata
from itertools import product

import pytest
from PIL import Image
from triplets import catch_message, pixels, save

from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.datasets import SPLITS, own, read_splits
from demo_sdtps.datasets.folders import read_folder, read_folders, read_query
from demo_sdtps.datasets.images import unreadable
from demo_sdtps.datasets.own import name_labels, number_labels, number_scenes, read_table
from demo_sdtps.evaluation.protocol import count_matched

DEFAULT = r"(?P<identity>\d{6})_cam(?P<camera>\d+)"
ONE_DIGIT = r"(?P<identity>-1|\d{4})_c(?P<camera>\d)"


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (DEFAULT, "000005_cam12_0", ["000005", "12"]),
        (DEFAULT, "more/000005_cam1", ["000005", "1"]),
        (DEFAULT, "x", []),
        (DEFAULT, "1000005_cam1", "identity 000005 is a piece"),
        (ONE_DIGIT, "0001_c1s1", ["0001", "1"]),
        (ONE_DIGIT, "-1_c1s1", ["-1", "1"]),
        (ONE_DIGIT, "0001_c12s1", "camera 1 is a piece"),
        (ONE_DIGIT, "00012_c1s1", "identity 0012 is a piece"),
        # what the rest of a pattern swallows
        (r"(?P<identity>\d{4}).*c(?P<camera>\d)", "00012_c1", "identity 0001 is a piece"),
        (r"(?P<identity>\d{4})(?P<image>\d{3})", "0001002", ["0001", "002"]),
        (r"(?P<identity>\d{4})(\d{3})", "0001002", ["0001"]),
        (r"(\d)(?P<identity>\d{4})", "10002", ["0002"]),
        # the minus of a number, and a hyphen
        (r"(?P<identity>\d+)_c", "-1_c1", "identity 1 is a piece"),
        (r"(?P<identity>\d+)_c", "more/-1_c1", "identity 1 is a piece"),
        (r"(?P<identity>\d+)_c", "person-1_c1", ["1"]),
        (r"(?P<identity>[A-Z][a-z]+)", "Bo1", ["Bo"]),
        (r"(?P<identity>\d+)(_c(?P<camera>\d))?", "7", ["7"]),
        # folders
        (DEFAULT, "000007_cam9/000005_cam1", "begin the pattern with"),
        (DEFAULT, "000007_cam9/000007_cam9", ["000007", "9"]),
        (DEFAULT + "[^/]*$", "000007_cam9/000005_cam1_0", ["000005", "1"]),
        ("^" + DEFAULT, "000007_cam9/000005_cam1", ["000007", "9"]),
        (r"(?P<identity>\d+)/cam(?P<camera>\d+)", "0012/cam3/0001", ["0012", "3"]),
        (r"(?P<identity>\d+).*_c(?P<camera>\d)", "2024/0001_c1", "begin the pattern with"),
    ],
)
def test_the_labels_of_a_name_are_whole(pattern, name, expected):
    pattern = re.compile(pattern)
    if isinstance(expected, list):
        assert [*name_labels(pattern, name).values()] == expected
    else:
        assert expected in catch_message(name_labels, pattern, name)


def test_cameras_with_two_digits_in_the_layout_of_market_1501(tmp_path):
    places = (
        "query/0010_c1s1_0",
        "bounding_box_test/0010_c12s1_0",
        "bounding_box_train/0002_c3s1_0",
    )
    for place in places:
        save(tmp_path / f"{place}.png", pixels(1, 1, "RGB", 16, 32))
    opts = ["DATASETS.ROOT_DIR", str(tmp_path), "MODEL.TRANSFORMER_TYPE", "test_vit"]
    cfg = load_cfg("Own/RGB.yml", opts)
    splits = read_splits(cfg)
    names = [splits[name][0].camera_name for name in ("train", "query", "gallery")]
    assert names == ["3", "1", "12"]
    assert count_matched(cfg, splits["query"], splits["gallery"]) == 1
    message = catch_message(
        read_splits, load_cfg("Own/RGB.yml", [*opts, "DATASETS.PATTERN", ONE_DIGIT])
    )
    assert "camera 1 is a piece of a number" in message and "c12s1_0" in message


def test_a_number_for_each_label():
    assert number_labels(["7", "012"]) == {"7": 7, "012": 12}
    assert number_labels(["7", "07", "b"]) == {"07": 0, "7": 1, "b": 2}
    longest = "999999999999999999"  # of 18 digits; those of 19 need not fit into 64 bits
    assert number_labels([longest]) == {longest: int(longest)}
    long = [f"922337203685477580{digit}" for digit in (7, 8, 9)]
    assert number_labels(["5", *long]) == {"5": 0, long[0]: 1, long[1]: 2, long[2]: 3}


@pytest.mark.parametrize("separator", [*",;\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_cells_have_no_blanks_around_them_and_no_invisible_marks(tmp_path, mark, separator):
    """And a column without a name, as pandas writes it, is none."""
    table, text = (
        tmp_path / "x.csv",
        ", split ,identity,\u00a0no\u200ete\r\n0, train,Bo ,a\u00a0 b\u00ad\n\n1,query,\u202a-1 \r\n",
    )
    table.write_text(mark + text.replace(",", separator), encoding="utf-8", newline="")
    columns, lines = read_table(table)
    assert columns == ["split", "identity", "note"]
    assert [*lines] == [2, 4]
    assert [[*line.values()] for line in lines.values()] == [
        ["train", "Bo", "a b"],
        ["query", "-1", ""],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("split,identity\ntrain,Bo\n\ntrain,Bo, Jr\n", "Line 4 of .* more cells"),
        ('split,note\ntrain,"open\nquery,lost\n', "unexpected end of data"),
        ("split,identity\ntrain,Bo\nquery,Bo\0\n", "Line 3 of .* has an invisible character"),
        ("sep=;\nsplit;note\ntrain;Bo;Jr\n", "Line 3 of .* a text with ';' into"),
        ("split,note,no\u00adte\ntrain,Bo,\n", "two columns 'note'"),
    ],
)
def test_a_table_that_says_two_things_is_refused(tmp_path, text, expected):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UserError, match=expected):
        read_table(tmp_path / "x.csv")


def test_labels_that_are_one_number_are_told(tmp_path, caplog):
    save(tmp_path / "x.png", IMAGE)
    rows = map(",".join, product(SPLITS, ("7", "07", "7.0", "8"), ("2", "2.0"), ["x.png"]))
    (tmp_path / "x.csv").write_text("\n".join(["split,identity,camera,rgb", *rows, "train"]))
    words = ["DATASETS.NAMES", "CSV", "DATASETS.ROOT_DIR", str(tmp_path / "x.csv")]
    read_splits(load_cfg(None, words))
    told = [text.partition(":")[0] for text in caplog.messages]
    assert told == [words[-1], "identity 07 and 7 and 7.0", "camera 2 and 2.0"]


def test_triplets_with_a_file_in_common_are_one_scene(tmp_path):
    """By whatever path: a link, a link to its folder, another name of the file."""
    place = tmp_path / "real"
    for name in ("a", "b", "c", "d"):
        save(place / f"{name}.png", pixels(1, 1, "RGB", 16, 32))
    os.symlink(place, tmp_path / "linked")
    os.symlink(place / "b.png", place / "to_b.png")
    os.link(place / "c.png", place / "again_c.png")
    a, b, c, d = (str(place / f"{name}.png") for name in "abcd")
    triplets = [
        (a, b, None),
        (str(tmp_path / "linked" / "a.png"), None, None),
        (None, None, c),
        (None, str(place / "to_b.png"), None),
        (str(place / "again_c.png"), None, None),
        (d, d, None),
        (str(place / "lost.png"), None, None),
    ]
    triplets.append((c, d, None))  # which joins two
    scenes = number_scenes(triplets)
    assert [scenes.index(scene) for scene in scenes] == [0, 0, 2, 0, 2, 2, 6, 2]


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


def test_what_systems_hide_is_no_image_and_other_formats_are_counted(tmp_path, caplog):
    hidden = ("._a.png", ".DS_Store", "@eaDir/a.png", "__MACOSX/._a.png", ".hidden/a.png")
    hidden += ("#recycle/a.png",)
    for name in (*hidden, "a.png", "more/b.png", "more/._b.png", "more/@eaDir/b.png"):
        save(tmp_path / "RGB" / name, IMAGE) if name.endswith("g") else None
    (tmp_path / "RGB" / "Thumbs.db").touch()
    assert names_of(tmp_path) and not caplog.records
    for name in ("x.heic", "more/y.HEIC", "more/notes.txt"):
        (tmp_path / "RGB" / name).touch()
    assert names_of(tmp_path) == ["a", "more/b"]
    (text,) = caplog.messages
    assert "RGB: 3 files are left out" in text and text.endswith("(.HEIC, .heic, .txt)")


def test_names_that_look_the_same_are_one_triplet(tmp_path):
    names = ("Jos\u00e9 a", "Jose\u0301\u00a0a", "Jos\u00e9\u200e \u00ada")
    pairs = zip(MODALITIES, names, strict=True)
    paths = [tmp_path / modality / "Zo\u00eb 1" / f"{name}.png" for modality, name in pairs]
    if ".avif" in Image.registered_extensions():
        paths[2] = paths[2].with_suffix(".avif")
    for path in paths:
        save(path, IMAGE)
    assert not unreadable([*map(str, paths)])
    triplets = (*read_folder(tmp_path), *read_query(paths[0]), *read_query(paths[1]))
    expected = {(f"Zo\u00eb 1/{names[0]}", tuple(map(str, paths)))}
    assert {(one.name, one.paths) for one in triplets} == expected
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, f"rgb\nRGB/Zo\u00eb 1/{names[0]}.png\n")
        (tmp_path / "x.csv").write_text(text, encoding="utf-8")
        (one,) = own.read_triplets(tmp_path / "x.csv", "gallery", MODALITIES)
        assert one.paths[0] == str(paths[0])


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
