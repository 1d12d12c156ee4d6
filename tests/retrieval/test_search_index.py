"""The index of a gallery: it grows, notices changes, survives interruptions and damage, and refuses what does not fit."""

import os
import time
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from feature_stores import damage, data_files
from numeric import numpy_generator
from PIL import Image

from demo_sdtps.config import UserError
from demo_sdtps.datasets.folders import Triplet, read_folder
from demo_sdtps.retrieval import gallery
from demo_sdtps.retrieval.gallery import Changes, label_type, open_index, update
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


@pytest.fixture
def place(tmp_path):
    """A gallery of ten triplets, RGB and NI, and three of NI alone; in parts of four."""
    for number in range(13):
        paint(
            tmp_path / "gallery", f"{number:02}", number, ("NI",) if number > 9 else ("RGB", "NI")
        )
    return tmp_path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(gallery, "BATCH", 4)


def paint(folder, name, seed, modalities=("RGB",)):
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, COLOURS), np.uint8)
    for modality in modalities:
        (folder / modality).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / modality / f"{name}.png")


def open_at(place, rebuild=False, origin=ORIGIN):
    return open_index(place / "index", place / "gallery", origin, rebuild)


def update_at(place, extract=None, triplets=None):
    """The index brought up to date, and the changes."""
    index = open_at(place)
    triplets = triplets or read_folder(place / "gallery")
    return index, update(index, triplets, extract or Colours(), COLOURS)


def content(place):
    """Features by name."""
    rows = open_table(place / "index", "").read()
    actual = {}
    for places, block in rows.features.blocks("reading"):
        names = rows.columns["name"].take(places).to_pylist()
        actual |= dict(zip(names, map(tuple, block.tolist()), strict=True))
    taken = rows.features.take(np.arange(len(rows)))
    assert list(map(tuple, taken.tolist())) == [actual[name] for name in sorted(actual)]
    return actual


def colour_rows(place):
    triplets = read_folder(place / "gallery")
    return dict(
        zip(
            [triplet.name for triplet in triplets],
            map(tuple, Colours()(triplets).tolist()),
            strict=True,
        )
    )


def test_new_changed_and_removed_images_alone_are_read(place):
    """New: another triplet, and another image of one; changed: other pixels; removed: a triplet, and an image of one."""
    _, changes = update_at(place)
    assert changes == Changes(new=13, changed=0, removed=0) and content(place) == colour_rows(place)
    folder = place / "gallery"
    paint(folder, "new", 50)
    paint(folder, "11", 51, ["TI"])
    paint(folder, "03", 52)
    (folder / "NI" / "12.png").unlink()
    (folder / "RGB" / "07.png").unlink()
    extract = Colours()
    index, changes = update_at(place, extract)
    names = ["03", "07", "11", "new"]
    assert changes == Changes(new=1, changed=3, removed=1) and sorted(extract.names) == names
    assert content(place) == colour_rows(place) and len(content(place)) == 13
    present = dict(
        zip(
            *(index.table.read().columns[name].to_pylist() for name in ("name", "present")),
            strict=True,
        )
    )
    assert [present[name] for name in ("00", *names)] == ["RGB,NI", "RGB,NI", "NI", "NI,TI", "RGB"]


def test_files_that_swap_their_names_are_read_again(place):
    """Of equal sizes and times of modification."""
    first, second = (place / "gallery" / "NI" / f"{number}.png" for number in (10, 11))
    for path in (first, second):
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    first, second = first.with_suffix(".bmp"), second.with_suffix(".bmp")
    for path in (first, second):
        os.utime(path, (1, 1))
    update_at(place)
    time.sleep(0.02)  # longer than the clock of a file system stands
    first.rename(place / "x")
    second.rename(first)
    (place / "x").rename(second)
    _, changes = update_at(place)
    assert changes == Changes(new=0, changed=2, removed=0) and content(place) == colour_rows(place)


def test_nothing_is_written_where_nothing_has_changed(place):
    """So that a gallery on a read-only disk is searched."""
    update_at(place)
    before = sorted((path, path.stat().st_mtime_ns) for path in (place / "index").rglob("*"))
    assert update_at(place)[1] == Changes(0, 0, 0)
    assert before == sorted(
        (path, path.stat().st_mtime_ns) for path in (place / "index").rglob("*")
    )


def test_an_interrupted_index_has_what_was_complete_and_continues(place):
    with pytest.raises(KeyboardInterrupt):
        update_at(place, Colours(most=8))
    assert content(place) == {name: row for name, row in colour_rows(place).items() if name < "08"}
    rest = Colours()
    _, changes = update_at(place, rest)
    assert rest.names == ["08", "09", "10", "11", "12"] and changes.new == 5
    assert content(place) == colour_rows(place)


def labelled(place, labels):
    """The gallery's triplets with labels by name."""
    return [
        Triplet(triplet.paths, name=triplet.name, labels=labels.get(triplet.name, {}))
        for triplet in read_folder(place / "gallery")
    ]


def test_labels_are_columns_which_change_without_another_extraction(place):
    """Whole numbers, numbers and texts, which filters compare; a triplet without a label has none."""
    labels = {
        f"{number:02}": {"time": f"2026-0{number}", "speed": f"{number}.5"}
        for number in range(1, 8)
    }
    for number in range(4):
        labels.setdefault(f"{number:02}", {})["age"] = str(number)
    update_at(place, triplets=labelled(place, labels))
    table = open_table(place / "index", "")

    def left(where):
        return table.read(where).columns["name"].to_pylist()

    assert left("age <> 2") == ["00", "01", "03"]
    assert left("time > '2026-05' AND speed < 7") == ["06"]
    assert left("present LIKE '%RGB%' AND age IS NULL AND rgb = 'RGB/09.png'") == ["09"]
    labels["02"]["age"], labels["05"]["note"] = "two", "it's"
    none = Colours(most=0)
    assert update_at(place, none, labelled(place, labels))[1] == Changes(0, 0, 0)
    assert left("age = 'two' OR note = 'it''s'") == ["02", "05"] and content(place) == colour_rows(
        place
    )
    for where, told in {
        "agee > 1": "No field named agee",
        "age >": "found: EOF",
        "age > 1": "could not convert",
        "twice(age) = 1": "Invalid function 'twice'",
    }.items():
        columns = r"has the columns name \(string\), .*, speed \(double\)"
        with pytest.raises(UserError, match=f"cannot be used: .*{told}[^\\n]*{columns}"):
            left(where)
    with pytest.raises(UserError, match=r"present = 'TI'.* leaves none of the rows"):
        left("present = 'TI'")
    with pytest.raises(UserError, match="have a label 'stamps'"):
        update_at(place, triplets=labelled(place, {"01": {"stamps": "1"}}))


def read_or_refuse(place):
    """Features by name, or None where they are refused as damaged."""
    try:
        return content(place)
    except UserError as error:
        assert " damaged" in str(error) and "\n" not in str(error)
        return None


@pytest.mark.parametrize("zeroes", [False, True], ids=["flipped", "zeroed"])
def test_damage_is_told(place, zeroes):
    update_at(place)
    expected, draws, told = content(place), numpy_generator(8), 0
    for _ in range(10):
        path = draws.choice(data_files(place / "index"))
        before = damage(path, draws, zeroes)
        actual = read_or_refuse(place)
        assert actual in (None, expected)
        told += actual is None
        path.write_bytes(before)
    assert told > 3 and content(place) == expected


def test_a_damaged_index_is_made_anew_with_rebuild(place):
    update_at(place)
    for path in (place / "index").rglob("*.manifest"):
        path.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"is damaged .*; pass --rebuild"):
        open_at(place)
    update(open_at(place, rebuild=True), read_folder(place / "gallery"), Colours(), COLOURS)
    assert content(place) == colour_rows(place)


def test_an_index_of_another_gallery_is_refused_unless_that_has_moved(place):
    update_at(place)
    paint(place / "other", "00", 0)
    open_other = partial(open_index, place / "index", origin=ORIGIN, rebuild=False)
    with pytest.raises(UserError, match=r"is of the gallery .*gallery, not of .*other; pass --reb"):
        open_other(gallery=place / "other")
    os.rename(place / "gallery", place / "moved")
    index = open_other(gallery=place / "moved")
    assert update(index, read_folder(place / "moved"), Colours(most=0), COLOURS) == Changes(0, 0, 0)


def test_a_table_of_another_format_is_refused_and_made_anew_with_rebuild(place, monkeypatch):
    triplets = read_folder(place / "gallery")
    with monkeypatch.context() as patch:
        patch.setattr("demo_sdtps.retrieval.table.FORMAT", 2)
        update(open_at(place), triplets, Colours(), COLOURS)
    with pytest.raises(UserError, match="in format 2 of another version, not 3; pass --rebuild"):
        open_at(place)
    assert update(open_at(place, True), triplets, Colours(), COLOURS).new == len(triplets)


def test_what_earlier_versions_stored_is_refused(place):
    (place / "index").mkdir()
    (place / "index" / ".store.json.part").touch()
    with pytest.raises(UserError, match="delete it; it is made anew"):
        open_at(place)
    (place / "index" / ".store.json.part").rename(place / "index" / "notes.txt")
    for rebuild in (False, True):
        with pytest.raises(UserError, match=r"has other files such as notes\.txt"):
            open_at(place, rebuild)


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
