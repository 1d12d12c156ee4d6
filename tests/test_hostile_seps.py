"""Damaged image-text data: reported in one sentence before anything is written."""
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import seps_tiny
from hostile import Case, Place, run_case, table

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
    ("a path out of the folder", to("../../../else/secret.jpg"), ["stay inside"]),
    ("an image that the mapping lacks", mapping(lambda found, image: found.pop(image)), ["train_ids.txt, line 4", "is not in"]),
    ("a mapping cut short", file("id_mapping.json", b'{"1": "a'), ["no valid JSON"]),
    ("an image that is missing", to("none.jpg"), ["is missing"]),
    ("an image that is none", image(lambda path: path.write_text("text")), ["cannot identify", "replace it."]),
    ("an image cut short", lambda place: os.truncate(an_image(place), 300), ["cannot be read"]),
    ("an empty caption", line("train_caps.txt", 3, "  "), ["train_caps.txt, line 3", "is empty"]),
    ("captions of another encoding", line("train_caps.txt", 3, "Stra\xdfe".encode("latin-1")), ["line 3", "not UTF-8"]),
    ("a caption too few", line("train_caps.txt", 24, ""), ["train_caps.txt"]),
    ("a long caption of nobody", dense(id=None), ["train_dense.jsonl, line 2"]),
    ("a long caption twice", dense(id="first"), ["train_dense.jsonl, line 2", "keep one"]),
    ("more captions in a batch than there are", lambda place: None, ["SOLVER.IMS_PER_BATCH"]),
    ("a text tower that is no folder", lambda place: None, ["MODEL.TEXT_TOWER", "{root}/none"]),
]
WORDS = {"more captions in a batch than there are": ("SOLVER.IMS_PER_BATCH", "1000"),
         "a text tower that is no folder": ("MODEL.TEXT_TOWER", "{root}/none")}


@table([Case(name, "train_seps", make, (*ONE_EPOCH, *WORDS.get(name, ())), tuple(says)) for name, make, says in TOLD])
def test_damaged_data_are_reported_in_one_sentence(case, place, command):
    run_case(case, place, command)


def with_line_ends_of_windows(place):
    path = data_of(place) / "train_caps.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def test_captions_of_any_characters_are_trained_on(place, command):
    line("train_caps.txt", 3, "\u200b Straße 猫 🚶 \u2028")(place)
    with_line_ends_of_windows(place)
    run_case(Case("", "train_seps", lambda place: None, ONE_EPOCH, ()), place, command)
    records = json.loads((place.folder / "output" / "metrics.json").read_text())
    assert np.isfinite(records[-1]["loss"]) and 0 <= records[-1]["test"]["rSum"] <= 600


def test_images_of_training_in_the_test_are_a_warning(place, command):
    for kind in ("caps.txt", "ids.txt", "dense.jsonl"):
        shutil.copy(data_of(place) / f"train_{kind}", data_of(place) / f"test_{kind}")
    _, stderr = run_case(Case("", "train_seps", lambda place: None, ONE_EPOCH, ()), place, command)
    said = f"WARNING: {seps_tiny.SIZES['train']} images are in training and test"
    assert said in stderr and said in (place.folder / "output" / "log.txt").read_text()
    assert train_seps.__doc__
