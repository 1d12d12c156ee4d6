"""The index of a gallery: it grows, notices changes, survives interruptions, and refuses what does not fit."""

import os
import re
import time

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from demo_sdtps.config import UserError
from demo_sdtps.datasets.folders import Triplet, read_folder
from demo_sdtps.retrieval import search
from demo_sdtps.retrieval.search import Changes, label_type, open_index, update
from demo_sdtps.retrieval.table import open_table

KEYS = {"INPUT.SIZE_TEST": [32, 16]}
ORIGIN = {"checkpoint_sha256": "a" * 64, "return_pattern": 3, "configuration": KEYS}
COLOURS = 3


class Colours:
    """Features of triplets: the mean colour of their first images, of length 1. `names` are those that were asked for."""

    def __init__(self, most=None):
        self.names, self.most = [], most

    def __call__(self, triplets):
        if self.most is not None and len(self.names) >= self.most:
            raise KeyboardInterrupt
        self.names += [triplet.name for triplet in triplets]
        means = [
            np.asarray(Image.open(triplet.files[0])).reshape(-1, COLOURS).mean(axis=0)
            for triplet in triplets
        ]
        return np.array([mean / np.linalg.norm(mean) for mean in means], np.float32)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A gallery of ten triplets, RGB and NI, and three of NI alone, two of which have names with an apostrophe; in parts of
    four."""
    monkeypatch.setattr(search, "BATCH", 4)
    for number in range(13):
        modalities = ("NI",) if number > 9 else ("RGB", "NI")
        paint(tmp_path / "gallery", f"{number:02}" + "'" * (number > 10), number, modalities)
    return tmp_path


def paint(folder, name, seed, modalities=("RGB",)):
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, COLOURS), np.uint8)
    for modality in modalities:
        (folder / modality).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / modality / f"{name}.png")


def update_at(place, extract=None, triplets=None, rebuild=False, folder="gallery"):
    """The changes of an index that is brought up to date."""
    triplets = triplets or read_folder(place / folder)
    index = open_index(place / "index", place / folder, ORIGIN, triplets, COLOURS, rebuild)
    return update(index, place / folder, triplets, extract or Colours())


def content(place):
    """Features by name."""
    names, (features, _) = open_table(place / "index").side()
    return dict(zip(names.tolist(), map(tuple, features.numpy()), strict=True))


def colour_rows(place):
    triplets = read_folder(place / "gallery")
    names = [triplet.name for triplet in triplets]
    return dict(zip(names, map(tuple, Colours()(triplets)), strict=True))


def test_new_changed_and_removed_images_alone_are_read(place):
    """New: another triplet, and another image of one; changed: other pixels; removed: a triplet, and an image of one."""
    assert update_at(place) == Changes(new=13, changed=0, removed=0)
    assert content(place) == colour_rows(place)
    folder = place / "gallery"
    paint(folder, "new", 50)
    paint(folder, "11'", 51, ["TI"])
    paint(folder, "03", 52)
    (folder / "NI" / "12'.png").unlink()
    (folder / "RGB" / "07.png").unlink()
    extract = Colours()
    assert update_at(place, extract) == Changes(new=1, changed=3, removed=1)
    assert sorted(extract.names) == ["03", "07", "11'", "new"]
    assert content(place) == colour_rows(place) and len(content(place)) == 13
    names, (_, present) = open_table(place / "index").side()
    sets = dict(zip(names.tolist(), present.tolist(), strict=True))
    assert [sets[name] for name in ("00", *sorted(extract.names))] == [
        *2 * [[True, True, False]],
        [False, True, False],
        [False, True, True],
        [True, False, False],
    ]


def test_files_that_swap_their_names_are_read_again(place):
    """Of equal sizes and times of modification."""
    first, second = (place / "gallery" / "NI" / f"{name}.bmp" for name in ("10", "11'"))
    for path in (first, second):
        Image.open(path.with_suffix(".png")).save(path)
        path.with_suffix(".png").unlink()
        os.utime(path, (1, 1))
    update_at(place)
    time.sleep(0.02)  # longer than the clock of a file system stands
    first.rename(place / "x")
    second.rename(first)
    (place / "x").rename(second)
    assert update_at(place) == Changes(0, 2, 0) and content(place) == colour_rows(place)


def test_nothing_is_written_where_nothing_has_changed(place):
    update_at(place)
    files = lambda: sorted((p, p.stat().st_mtime_ns) for p in (place / "index").rglob("*"))  # noqa: E731
    before = files()
    assert update_at(place) == Changes(0, 0, 0) and files() == before


def test_an_interrupted_index_has_what_was_complete_and_continues(place):
    with pytest.raises(KeyboardInterrupt):
        update_at(place, Colours(most=8))
    assert content(place) == {name: row for name, row in colour_rows(place).items() if name < "08"}
    rest = Colours()
    assert update_at(place, rest).new == 5 and rest.names == ["08", "09", "10", "11'", "12'"]
    assert content(place) == colour_rows(place)


def labelled(place, labels):
    """The gallery's triplets with labels by name."""
    return [
        Triplet(triplet.paths, name=triplet.name, labels=labels.get(triplet.name, {}))
        for triplet in read_folder(place / "gallery")
    ]


def test_labels_are_columns(place):
    """Numbers and texts, which filters compare. Where a label changes, its triplet is extracted anew, or all by its type."""
    labels = {f"{n:02}": {"time": f"2026-0{n}", "speed": f"{n}.5"} for n in range(1, 8)}
    for number in range(4):
        labels.setdefault(f"{number:02}", {})["age"] = str(number)
    update_at(place, triplets=labelled(place, labels))
    left = lambda where: open_table(place / "index").read(where)["name"].to_pylist()  # noqa: E731
    assert left("age <> 2") == ["00", "01", "03"]
    assert left("time > '2026-05' AND speed < 7") == ["06"]
    assert left("present LIKE '%RGB%' AND age IS NULL AND rgb = 'RGB/09.png'") == ["09"]
    labels["02"]["age"] = "5"
    assert update_at(place, triplets=labelled(place, labels)) == Changes(0, 1, 0)
    labels["02"]["age"], labels["05"]["note"] = "two", "it's"
    assert update_at(place, triplets=labelled(place, labels)) == Changes(13, 0, 0)
    assert left("age = 'two' OR note = 'it''s'") == ["02", "05"]
    assert content(place) == colour_rows(place)
    for where in ("agee > 1", "age >", "age > 1", "speed < 7 UND speed > 1", "age = 77"):
        with pytest.raises(UserError, match=f"The filter '{where}'"):
            left(where)
    for label in ("stamps", "feature", "shot.time", "a`b", "_rowid", "*", ""):
        with pytest.raises(UserError, match=re.escape(f"column '{label}'")):
            update_at(place, triplets=labelled(place, {"01": {label: "1"}}))


def test_an_index_that_does_not_fit_is_refused_and_made_anew_with_rebuild(place, monkeypatch):
    """Of another gallery, unless that has moved, of another format, and one that cannot be read."""
    update_at(place)
    paint(place / "other", "00", 0)
    with pytest.raises(UserError, match="--rebuild"):
        update_at(place, folder="other")
    os.rename(place / "gallery", place / "moved")
    assert update_at(place, Colours(most=0), folder="moved") == Changes(0, 0, 0)
    os.rename(place / "moved", place / "gallery")
    monkeypatch.setitem(ORIGIN, "format", 5)
    with pytest.raises(UserError, match=r"another format.*--rebuild"):
        update_at(place)
    for path in (place / "index").rglob("*.manifest"):
        path.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"cannot be read .*--rebuild"):
        update_at(place)
    assert update_at(place, rebuild=True).new == 13 and content(place) == colour_rows(place)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "-20", None], "int64"),
        (["999999999999999999"], "int64"),
        # as a number of 64 bits they would be one
        (["9223372036854775808", "9223372036854775809"], "string"),
        (["0.5", "7"], "double"),
        (["1234567890.12345", "-3"], "double"),
        (["0.1234567890123456789", "0.1234567890123456788"], "string"),
        (["007", "7"], "string"),
        ([None, None], "string"),
    ],
)
def test_a_column_of_labels_keeps_them_apart(texts, expected):
    column = pa.array(texts, pa.string())
    assert str(label_type(column)) == expected
    assert len(column.cast(label_type(column)).unique()) == len(column.unique())
