"""Hostile image-text data: every case handled, or told in one sentence before anything is written."""
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import seps_tiny
from hostile import Case, Place, run_case, table
from PIL import Image

from demo_sdtps import train_seps
from demo_sdtps.seps.image_text import read_image_texts

ONE_EPOCH = ("SOLVER.MAX_EPOCHS", "1")


@pytest.fixture
def place(shapes_root, tmp_path):
    (tmp_path / "else").mkdir()
    return Place(shutil.copytree(shapes_root, tmp_path / "own"), tmp_path / "else")


def data_of(place):
    return place.root / "shapes"


def mapping(change, number=3):
    """Change the mapping of images to images: `change(mapping, the image of this number in the training split)`."""
    def make(place):
        file = data_of(place) / "id_mapping.json"
        found = json.loads(file.read_text())
        change(found, (data_of(place) / "train_ids.txt").read_text().split()[number])
        file.write_text(json.dumps(found))

    return make


def to(path, number=3):
    return mapping(lambda found, image: found.update({image: path}), number)


def line(name, number, text):
    """Change a line of a file."""
    def make(place):
        file = data_of(place) / name
        lines = file.read_bytes().split(b"\n")
        lines[number - 1] = text if isinstance(text, bytes) else text.encode()
        file.write_bytes(b"\n".join(lines))

    return make


def file(name, content):
    return lambda place: (data_of(place) / name).write_bytes(content)


def image(make, number=3):
    """Put what `make(path)` makes in the place of a training image."""
    def change(place):
        path = an_image(place, number)
        path.unlink()
        make(path)

    return change


def an_image(place, number=3):
    return Path(read_image_texts(place.root, "shapes", "train").paths[number])


def secret_beside(place):
    """An image outside the data set, which a mapping asks for."""
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(place.folder / "secret.jpg")


def dense(**content):
    """The second long caption of the training split, with other content; `id` "first" is that of the first."""
    def make(place):
        path = data_of(place) / "train_dense.jsonl"
        lines = path.read_text().splitlines()
        first, second = map(json.loads, lines[:2])
        second |= content
        lines[1] = json.dumps(second | ({"id": first["id"]} if second["id"] == "first" else {}))
        path.write_text("\n".join(lines))

    return make


TOLD = [
    ("no data", lambda place: shutil.rmtree(place.root), ["The data set shapes is not at {root}/shapes"]),
    ("a path up and out", lambda place: (secret_beside(place), to("../../../else/secret.jpg")(place)), ["stay inside"]),
    ("a path up and out in the middle", to("a/../../../secret.jpg"), ["stay inside"]),
    ("an absolute path", to("/etc/passwd"), ["'/etc/passwd'", "stay inside"]),
    ("a path of Windows", to("..\\..\\secret.jpg"), ["stay inside"]),
    ("an empty path", to(""), ["stay inside"]),
    ("a path with a zero byte", to("a\0.jpg"), ["a\\x00.jpg", "is missing"]),
    ("a path with half a character", to("\ud800.jpg"), ["\\ud800.jpg"]),
    ("a path without end", to("a" * 5000), ["is missing"]),
    ("a number for a path", to(3), ["has the path 3"]),
    ("a list for a path", to(["a.jpg"]), ["has the path"]),
    ("an image that the mapping lacks", mapping(lambda found, image: found.pop(image)), ["train_ids.txt, line 4", "is not in"]),
    ("a mapping that is a list", file("id_mapping.json", b"[]"), ["one JSON object"]),
    ("a mapping cut short", file("id_mapping.json", b'{"1": "a'), ["no valid JSON"]),
    ("a mapping within mappings", file("id_mapping.json", b'{"a":' * 100_000), ["no valid JSON"]),
    ("a mapping of a number of 5000 digits", file("id_mapping.json", b'{"1": ' + b"9" * 5000 + b"}"), ["no valid JSON"]),
    ("a mapping of zeros", file("id_mapping.json", bytes(100)), ["no valid JSON"]),
    ("an image that is a folder", image(lambda path: path.mkdir()), ["is missing"]),
    ("an image that is a dead link", image(lambda path: path.symlink_to("nowhere")), ["is missing"]),
    ("an image that is a pipe", image(os.mkfifo), ["is missing"]),
    ("an image that is none", image(lambda path: path.write_text("text")), ["cannot identify", "replace it."]),
    ("an image of nothing", image(lambda path: path.touch()), ["it is empty", "replace it."]),
    ("an image cut short", lambda place: os.truncate(an_image(place), 300), ["cannot be read"]),
    ("an empty caption", line("train_caps.txt", 3, "  "), ["train_caps.txt, line 3", "is empty"]),
    ("no captions", file("train_caps.txt", b""), ["train_caps.txt is empty"]),
    ("captions of another encoding", line("train_caps.txt", 3, "Stra\xdfe".encode("latin-1")), ["line 3", "not UTF-8"]),
    ("captions that are zeros", file("dev_caps.txt", bytes(100)), ["dev_caps.txt has 1 captions"]),
    ("a caption too few", line("train_caps.txt", 24, ""), ["train_caps.txt"]),
    ("a folder for the captions", lambda place: (data_of(place) / "dev_caps.txt").unlink() or (
        data_of(place) / "dev_caps.txt").mkdir(), ["dev_caps.txt cannot be read"]),
    ("one image alone", lambda place: [file(name, text)(place) for name, text in (
        ("dev_ids.txt", b"1\n" * 4), ("dev_caps.txt", b"a\n" * 4))], ["a single image"]),
    ("a long caption of nobody", dense(id=None), ["train_dense.jsonl, line 2"]),
    ("a long caption twice", dense(id="first"), ["train_dense.jsonl, line 2", "keep one"]),
    ("a long caption that is a list", dense(caption=["a"]), ["train_dense.jsonl, line 2"]),
    ("a long caption with half a character", dense(caption="a \ud800 star"), ["train_dense.jsonl, line 2", "character"]),
    ("more captions in a batch than there are", lambda place: None, ["SOLVER.IMS_PER_BATCH"]),
    ("a text tower that is no folder", lambda place: None, ["MODEL.TEXT_TOWER", "{root}/none"]),
]
WORDS = {"more captions in a batch than there are": ("SOLVER.IMS_PER_BATCH", "1000"),
         "a text tower that is no folder": ("MODEL.TEXT_TOWER", "{root}/none"),
         "no data": ("MODEL.TEXT_TOWER", "{root}/none")}


@table([Case(name, "train_seps", make, (*ONE_EPOCH, *WORDS.get(name, ())), tuple(says)) for name, make, says in TOLD])
def test_damaged_data_are_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)


def with_line_ends_of_windows(place):
    path = data_of(place) / "train_caps.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def renamed(place, number, name="Straße 猫 %s {0}.jpg"):
    path = an_image(place, number)
    path.rename(path.with_name(name))
    to(name, number)(place)


def linked(place, number):
    shutil.move(an_image(place, number), place.folder / "far.jpg")
    (data_of(place) / "images" / "near.jpg").symlink_to(place.folder / "far.jpg")
    to("near.jpg", number)(place)


STRANGE = {
    "captions": [
        line("train_caps.txt", 3, "\x00 \x1b[31m \u200b Straße 猫 🚶 \u2028 ' OR 1=1 --"),
        line("train_caps.txt", 5, "red " * 100_000),
        line("train_caps.txt", 7, "."),
        line("train_caps.txt", 9, "[PAD] [CLS] [SEP] [MASK] [UNK]"),
        with_line_ends_of_windows],
    "pictures": [
        lambda place: renamed(place, 1),
        lambda place: linked(place, 2),
        image(lambda path: Image.new("RGB", (1, 1)).save(path), 3),
        image(lambda path: Image.fromarray(np.zeros((9, 9), np.uint16)).save(path, "PNG"), 4),
        image(lambda path: Image.new("P", (9, 9)).save(path, "PNG", transparency=b"\0\1"), 5),
        image(lambda path: Image.new("RGB", (3000, 2)).save(path), 6),
        mapping(lambda found, image: found.update({image: found[min(found)]}), 7)],  # the same for two images
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange_captions_and_images_are_trained_on(what, place, command):
    for make in STRANGE[what]:
        make(place)
    stderr = run_case(Case("", "train_seps", lambda place: None, ONE_EPOCH, ()), place, command)[1]
    assert "images are in training" not in stderr
    records = json.loads((place.folder / "output" / "metrics.json").read_text())
    assert np.isfinite(records[-1]["loss"]) and 0 <= records[-1]["test"]["rSum"] <= 600


def test_images_of_training_in_the_test_are_a_warning(place, command):
    for kind in ("caps.txt", "ids.txt", "dense.jsonl"):
        shutil.copy(data_of(place) / f"train_{kind}", data_of(place) / f"test_{kind}")
    _, stderr = run_case(Case("", "train_seps", lambda place: None, ONE_EPOCH, ()), place, command)
    said = f"WARNING: {seps_tiny.SIZES['train']} images are in training and test"
    assert said in stderr and said in (place.folder / "output" / "log.txt").read_text()
    assert train_seps.__doc__
