"""The files of image-text matching: what they give, and every mistake in them told by file and line."""

import json

import pytest
from triplets import catch_message

from seps.captions import ImageTexts, read_image_texts

IDS = ("7", "cat", "40")
CAPTIONS = tuple(f"caption {number} of {image}" for image in IDS for number in (1, 2))
DENSE = {image: f"all that {image} shows" for image in IDS}
MAPPING = {"7": "seven.jpg", "cat": "deep/er/cat.jpg", "40": "forty.png", "unused": "gone.jpg"}


def write_data(root, ids=IDS, captions=CAPTIONS):
    """A data set "set" of three images with two captions each."""
    folder = root / "set"
    for image in ("seven.jpg", "deep/er/cat.jpg", "forty.png"):
        path = folder / "images" / image
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not decoded by the reader")
    (folder / "id_mapping.json").write_text(json.dumps(MAPPING))
    dense = [json.dumps({"id": image, "caption": DENSE[image]}) for image in reversed(IDS)]
    texts = {"train_caps.txt": captions, "train_ids.txt": ids, "train_dense.jsonl": dense}
    for file, lines in texts.items():
        (folder / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def read(root, **options):
    return read_image_texts(root, "set", "train", **options)


def image_paths(folder):
    return tuple(str(folder / "images" / MAPPING[image]) for image in IDS)


def test_an_id_for_each_image(tmp_path):
    folder = write_data(tmp_path)
    assert read(tmp_path) == ImageTexts(
        image_paths(folder), CAPTIONS, (0, 0, 1, 1, 2, 2), tuple(DENSE[image] for image in IDS)
    )


def test_an_id_for_each_caption_in_any_order(tmp_path):
    folder = write_data(tmp_path, ids=("7", "cat", "7", "40", "40", "cat"))
    actual = read(tmp_path)
    assert actual.paths == image_paths(folder) and actual.captions == CAPTIONS
    assert actual.image_of == (0, 1, 0, 2, 2, 1)


def test_long_captions_where_wanted(tmp_path):
    write_data(tmp_path)
    assert read(tmp_path, long_captions="yes") == read(tmp_path)
    assert read(tmp_path, long_captions="no").long_captions is None
    (tmp_path / "set" / "train_dense.jsonl").unlink()
    assert read(tmp_path).long_captions is None
    message = catch_message(lambda: read(tmp_path, long_captions="yes"))
    assert str(tmp_path / "set" / "train_dense.jsonl") in message and "missing" in message


def test_texts_are_unicode_and_lines_end_at_line_breaks_alone(tmp_path):
    captions = ("Zwei Hunde – ein Stöckchen", "a\u2028b", "c\x0bd", "e\x85f", "猫", "g h")
    folder = write_data(tmp_path, captions=captions)
    assert read(tmp_path).captions == captions
    (folder / "train_caps.txt").write_bytes(("\ufeff" + "\r\n".join((*captions, ""))).encode())
    assert read(tmp_path).captions == captions


@pytest.mark.parametrize(
    ("file", "lines", "reason"),
    [
        ("train_caps.txt", (*CAPTIONS[:3], " \t", *CAPTIONS[4:]), ", line 4"),
        ("images/deep/er/cat.jpg", None, ""),
        ("train_caps.txt", "a" * 7, ""),
        ("train_dense.jsonl", ['{"id": "dog", "caption": "x"}'], ""),
        ("id_mapping.json", ["[]"], ""),
    ],
)
def test_a_mistake_is_reported_with_its_file(tmp_path, file, lines, reason):
    folder = write_data(tmp_path)
    (folder / file).unlink()
    if lines:
        (folder / file).write_text("\n".join(lines))
    message = catch_message(read, tmp_path)
    assert f"{folder / file}{reason}" in message and "\n" not in message
