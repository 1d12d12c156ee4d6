"""The files of image-text matching: what they give, and every mistake in them told by file and line."""
import json
import os

import pytest
from triplets import message_of

from demo_sdtps.config import UserError
from demo_sdtps.seps.image_text import ImageTexts, read_image_texts

IDS = ("7", "cat", "40")
CAPTIONS = tuple(f"caption {number} of {image}" for image in IDS for number in (1, 2))
DENSE = {image: f"all that {image} shows" for image in IDS}
MAPPING = {"7": "seven.jpg", "cat": "deep/er/cat.jpg", "40": "forty.png", "unused": "gone.jpg"}


def write_data(root, ids=IDS, captions=CAPTIONS, dense=True, split="train"):
    """A data set "set" of three images with two captions each."""
    folder = root / "set"
    for image in ("seven.jpg", "deep/er/cat.jpg", "forty.png"):
        path = folder / "images" / image
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not decoded by the reader")
    (folder / "id_mapping.json").write_text(json.dumps(MAPPING))
    (folder / f"{split}_caps.txt").write_text("".join(f"{caption}\n" for caption in captions), encoding="utf-8")
    (folder / f"{split}_ids.txt").write_text("".join(f"{image}\n" for image in ids))
    if dense:
        lines = [json.dumps({"id": image, "caption": DENSE[image]}) for image in reversed(IDS)]
        (folder / f"{split}_dense.jsonl").write_text("\n".join(lines))
    return folder


def read(root, **options):
    return read_image_texts(root, "set", "train", **options)


def paths_of(folder):
    return tuple(str(folder / "images" / MAPPING[image]) for image in IDS)


def test_an_id_for_each_image(tmp_path):
    folder = write_data(tmp_path)
    assert read(tmp_path) == ImageTexts(paths_of(folder), CAPTIONS, (0, 0, 1, 1, 2, 2), tuple(DENSE[image] for image in IDS))


def test_an_id_for_each_caption_in_any_order(tmp_path):
    folder = write_data(tmp_path, ids=("7", "cat", "7", "40", "40", "cat"))
    found = read(tmp_path)
    assert found.paths == paths_of(folder) and found.captions == CAPTIONS
    assert found.image_of == (0, 1, 0, 2, 2, 1)


def test_an_image_that_is_named_twice_is_one_image(tmp_path):
    write_data(tmp_path, ids=("7", "cat", "7"), captions=CAPTIONS)
    found = read(tmp_path)
    assert found.image_of == (0, 0, 1, 1, 0, 0) and len(found.paths) == len(found.long_captions) == 2


def test_splits_are_files(tmp_path):
    write_data(tmp_path)
    write_data(tmp_path, ids=("cat", "40"), captions=("one", "two"), split="testall")
    found = read_image_texts(tmp_path, "set", "testall")
    assert found.captions == ("one", "two") and found.long_captions == (DENSE["cat"], DENSE["40"])


def test_long_captions_where_wanted(tmp_path):
    write_data(tmp_path)
    assert read(tmp_path, long_captions="yes") == read(tmp_path)
    assert read(tmp_path, long_captions="no").long_captions is None
    (tmp_path / "set" / "train_dense.jsonl").unlink()
    assert read(tmp_path).long_captions is None
    message = message_of(lambda: read(tmp_path, long_captions="yes"))
    assert str(tmp_path / "set" / "train_dense.jsonl") in message and "missing" in message


def test_dense_ids_may_be_numbers(tmp_path):
    folder = write_data(tmp_path)
    lines = [json.dumps({"id": int(image) if image.isdigit() else image, "caption": DENSE[image]}) for image in IDS]
    (folder / "train_dense.jsonl").write_text("\n".join(lines) + "\n")
    assert read(tmp_path).long_captions == tuple(DENSE.values())


def test_texts_are_unicode_and_lines_end_at_line_breaks_alone(tmp_path):
    captions = ("Zwei Hunde – ein Stöckchen", "a\u2028b", "c\x0bd", "e\x85f", "猫", "g h")
    folder = write_data(tmp_path, captions=captions)
    assert read(tmp_path).captions == captions
    for data in ("\n".join(captions), "\r\n".join((*captions, "")), "\ufeff" + "\n".join((*captions, ""))):
        (folder / "train_caps.txt").write_bytes(data.encode())
        assert read(tmp_path).captions == captions


def test_many_captions_need_one_look_at_each_image(tmp_path, monkeypatch):
    looks, is_file = [], os.path.isfile
    monkeypatch.setattr("os.path.isfile", lambda path: looks.append(path) or is_file(path))
    folder = write_data(tmp_path, captions=CAPTIONS * 500)
    assert len(read(tmp_path).image_of) == 3000 and looks == list(paths_of(folder))


def replace_line(file, number, line):
    lines = file.read_text().split("\n")
    lines[number - 1] = line
    file.write_text("\n".join(lines))


CAPS, IDS_FILE, MAP, LONG = "train_caps.txt", "train_ids.txt", "id_mapping.json", "train_dense.jsonl"
MISTAKES = {
    "no captions file": (lambda f: (f / CAPS).unlink(), CAPS, "is missing"),
    "no ids file": (lambda f: (f / IDS_FILE).unlink(), IDS_FILE, "is missing"),
    "no mapping": (lambda f: (f / MAP).unlink(), MAP, "is missing"),
    "no images": (lambda f: (f / "images").rename(f / "elsewhere"), "images", "is missing"),
    "a folder for a file": (lambda f: (f / CAPS).unlink() or (f / CAPS).mkdir(), CAPS, "cannot be read"),
    "no captions": (lambda f: (f / CAPS).write_text(""), CAPS, "is empty"),
    "blank captions": (lambda f: (f / CAPS).write_text("\n \n\n"), CAPS, "is empty"),
    "no ids": (lambda f: (f / IDS_FILE).write_text("\n"), IDS_FILE, "is empty"),
    "an empty caption": (lambda f: replace_line(f / CAPS, 4, " \t"), f"{CAPS}, line 4", "the line is empty"),
    "an empty id": (lambda f: replace_line(f / IDS_FILE, 2, ""), f"{IDS_FILE}, line 2", "the line is empty"),
    "an unknown id": (lambda f: replace_line(f / IDS_FILE, 3, "41"), f"{IDS_FILE}, line 3", "'41' is not in"),
    "an image is gone": (lambda f: (f / "images/deep/er/cat.jpg").unlink(), "images/deep/er/cat.jpg", "'cat'"),
    "too many captions": (lambda f: (f / CAPS).write_text("a\n" * 7), CAPS, "7 captions"),
    "more ids than captions": (lambda f: (f / CAPS).write_text("a\nb\n"), IDS_FILE, "3 ids"),
    "one image": (lambda f: (f / IDS_FILE).write_text("7\n7\n"), IDS_FILE, "a single image"),
    "broken mapping": (lambda f: (f / MAP).write_text('{"7": '), MAP, "no valid JSON"),
    "deep mapping": (lambda f: (f / MAP).write_text("[" * 100_000), MAP, "no valid JSON"),
    "a list of images": (lambda f: (f / MAP).write_text("[]"), MAP, "one JSON object"),
    "an absolute path": (lambda f: (f / MAP).write_text(json.dumps({**MAPPING, "cat": "/etc/cat.jpg"})), MAP, "'/etc/cat.jpg'"),
    "a path outside": (lambda f: (f / MAP).write_text(json.dumps({**MAPPING, "40": "a/../../x.jpg"})), MAP, "stay inside"),
    "a number for a path": (lambda f: (f / MAP).write_text(json.dumps({**MAPPING, "40": 40})), MAP, "must be relative"),
    "an empty path": (lambda f: (f / MAP).write_text(json.dumps({**MAPPING, "40": ""})), MAP, "must be relative"),
    "captions in Latin-1": (lambda f: (f / CAPS).write_bytes(b"a\nb\nc\xe9\nd\ne\nf\n"), f"{CAPS}, line 3", "not UTF-8"),
    "a broken long caption": (lambda f: replace_line(f / LONG, 2, '{"id": "cat"'), f"{LONG}, line 2", "no valid JSON"),
    "a long caption without a text": (lambda f: replace_line(f / LONG, 2, '{"id": "cat"}'), f"{LONG}, line 2", '"caption"'),
    "a blank long caption": (lambda f: replace_line(f / LONG, 1, '{"id": "7", "caption": " "}'), f"{LONG}, line 1", "empty"),
    "a long caption that is a list": (lambda f: replace_line(f / LONG, 3, "[1]"), f"{LONG}, line 3", '"id"'),
    "two long captions": (lambda f: replace_line(f / LONG, 3, '{"id": "cat", "caption": "x"}'), f"{LONG}, line 3", "'cat'"),
    "an image without": (lambda f: replace_line(f / LONG, 2, '{"id": "dog", "caption": "x"}'), LONG, "no caption for"),
    "an empty dense file": (lambda f: (f / LONG).write_text(""), LONG, "is empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_file(tmp_path, mistake):
    folder = write_data(tmp_path)
    damage, file, said = MISTAKES[mistake]
    damage(folder)
    message = message_of(read, tmp_path)
    assert str(folder / file) in message and said in message
    assert "\n" not in message and message.endswith(".") and ";" in message


def test_a_missing_data_set_is_reported_with_its_layout(tmp_path):
    message = message_of(read_image_texts, tmp_path, "coco", "train")
    assert str(tmp_path / "coco") in message and "id_mapping.json" in message and "DATASETS.ROOT_DIR" in message


def test_a_data_set_one_level_too_deep_is_reported(tmp_path):
    folder = write_data(tmp_path / "inner")
    (tmp_path / "set").mkdir()
    folder.rename(tmp_path / "set" / "set")
    message = message_of(read_image_texts, tmp_path, "set", "train")
    assert f"at {tmp_path / 'set' / 'set'}, one level too deep; move what is in" in message


def test_mistakes_of_other_splits_do_not_matter(tmp_path):
    folder = write_data(tmp_path)
    (folder / "test_caps.txt").write_text("")
    assert len(read(tmp_path).captions) == 6
    with pytest.raises(UserError):
        read_image_texts(tmp_path, "set", "test")
