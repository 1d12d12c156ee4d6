"""The index of a gallery on disk: it grows, notices changes, survives interruptions, and refuses what does not fit."""
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_files import full_disk

from demo_sdtps.config import UserError, files
from demo_sdtps.datasets.folders import read_folder
from demo_sdtps.engine.search import approximate, gallery, store
from demo_sdtps.engine.search.gallery import Changes, open_index, update
from demo_sdtps.engine.search.nearest import nearest

ORIGIN = {"weights": "a" * 64, "return pattern": 3, "INPUT.SIZE_TEST": [32, 16]}
COLOURS = 3


class Colours:
    """Features of triplets: the mean colour of their first images, of length 1. `names` are those that were asked for, triplets
    of the names in `unread` cannot be read."""

    def __init__(self, most=None, unread=()):
        self.names, self.most, self.unread = [], most, unread

    def __call__(self, triplets):
        if self.most is not None and len(self.names) >= self.most:
            raise KeyboardInterrupt
        self.names += [triplet.name for triplet in triplets]
        means = [np.asarray(Image.open(triplet.file)).reshape(-1, COLOURS).mean(axis=0) for triplet in triplets
                 if triplet.name not in self.unread]
        rows = np.array([mean / np.linalg.norm(mean) for mean in means], np.float32).reshape(-1, COLOURS)
        return rows, {triplet.file: "(it is empty)" for triplet in triplets if triplet.name in self.unread}


@pytest.fixture
def place(tmp_path):
    """A gallery of ten triplets, RGB and NI, and three of NI alone; in parts of four."""
    for number in range(13):
        paint(tmp_path / "gallery", f"{number:02}", number, ("NI",) if number > 9 else ("RGB", "NI"))
    return tmp_path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    for module in (store, gallery):
        monkeypatch.setattr(module, "PART_ROWS", 4)


def paint(folder, name, seed, modalities=("RGB",)):
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, COLOURS), np.uint8)
    for modality in modalities:
        (folder / modality).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / modality / f"{name}.png")


def opened(place, kind="flat", rebuild=False, origin=ORIGIN):
    return open_index(place / "index", place / "gallery", origin, kind, rebuild)


def updated(place, extract=None):
    """The index brought up to date, and the changes."""
    index = opened(place)
    return index, update(index, read_folder(place / "gallery"), extract or Colours())


def content(index):
    """Features by name."""
    features = index.features().take(np.arange(len(index)))
    return dict(zip(index.names, map(tuple, features.tolist()), strict=True))


def expected(place):
    triplets = read_folder(place / "gallery")
    return dict(zip([triplet.name for triplet in triplets], map(tuple, Colours()(triplets)[0].tolist()), strict=True))


def files_of(index):
    return {path.name for path in index.folder.iterdir()}


def test_a_new_index_has_every_triplet_and_is_not_read_again(place):
    index, changes = updated(place)
    assert changes == Changes(new=13, changed=0, removed=0) and content(index) == expected(place)
    again = Colours()
    index, changes = updated(place, again)
    assert changes == Changes(0, 0, 0) and not again.names and content(index) == expected(place)


def test_new_changed_and_removed_images_alone_are_read(place):
    """New: another triplet, and another image of one; changed: other pixels; removed: a triplet, and an image of one."""
    updated(place)
    folder = place / "gallery"
    paint(folder, "new", 50)
    paint(folder, "11", 51, ["TI"])
    paint(folder, "03", 52)
    (folder / "NI" / "12.png").unlink()
    (folder / "RGB" / "07.png").unlink()
    extract = Colours()
    index, changes = updated(place, extract)
    assert changes == Changes(new=1, changed=3, removed=1) and sorted(extract.names) == ["03", "07", "11", "new"]
    assert content(index) == expected(place) == content(opened(place))
    assert len(set(index.numbers.tolist())) == len(index) == 13


def test_files_hold_what_counts_and_parts_are_filled(place):
    for number in range(6):
        paint(place / "gallery", f"more {number}", 60 + number)
        index, _ = updated(place)
    assert [len(part.names) for part in index.parts] == [4, 4, 4, 4, 3]
    assert files_of(index) == {"index.json", *(part.stem + suffix for part in index.parts for suffix in (".npy", ".json"))}


def test_an_interrupted_index_has_what_was_complete_and_continues(place):
    with pytest.raises(KeyboardInterrupt):
        updated(place, Colours(most=8))
    index = opened(place)
    assert len(index) == 8 and content(index) == {name: row for name, row in expected(place).items() if name < "08"}
    rest = Colours()
    index, changes = updated(place, rest)
    assert rest.names == ["08", "09", "10", "11", "12"] and changes.new == 5 and content(index) == expected(place)


def test_images_that_cannot_be_read_are_told_after_all_others_are_in_the_index(place):
    """In the first part, which is full without them, and all of the last."""
    bad = ("01", "02", "12")
    with pytest.raises(UserError, match=r"cannot be read: 3, namely .*01.png \(it is empty\), .*02.png .*12.png .* others\.$"):
        updated(place, Colours(unread=bad))
    assert content(opened(place)) == {name: row for name, row in expected(place).items() if name not in bad}
    rest = Colours()
    index, changes = updated(place, rest)
    assert rest.names == [*bad] and changes.new == 3 and content(index) == expected(place)


def test_files_that_have_not_changed_are_not_compared_again(place, monkeypatch):
    """But for those that were written a moment before: their next change might not show in their times."""
    index, _ = updated(place)
    compared = []
    monkeypatch.setattr(store, "sha256", lambda path: compared.append(path.name) or files.sha256(path))
    every = sorted(files_of(index) - {"index.json"})
    opened(place)
    assert sorted(compared) == every
    monkeypatch.setattr(files, "SETTLED", 0)
    compared.clear()
    opened(place)
    assert sorted(compared) == every
    compared.clear()
    opened(place)
    assert not compared
    times = os.stat(index.folder / every[0])
    flip(index.folder / every[0])
    os.utime(index.folder / every[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(UserError, match="is damaged"):
        opened(place)
    assert compared == [every[0]]


def test_a_full_disk_leaves_the_index_as_it_was(place):
    index, _ = updated(place)
    before = {name: (index.folder / name).read_bytes() for name in files_of(index)}
    paint(place / "gallery", "new", 50)
    with pytest.raises(UserError, match="cannot be written"), full_disk(200):
        updated(place)
    assert content(opened(place)) == content(index)
    assert {name: (index.folder / name).read_bytes() for name in before} == before


def test_what_a_killed_writer_left_is_removed_and_other_files_stay(place):
    index, _ = updated(place)
    for name in ("part-0123456789abcdef.npy", ".part-0123456789abcdef.json.0123456789abcdef.part", "mine.npy"):
        (index.folder / name).touch()
    paint(place / "gallery", "new", 50)
    index, _ = updated(place)
    assert files_of(index) & {"mine.npy", "part-0123456789abcdef.npy"} == {"mine.npy"}
    assert not any(name.endswith(".part") for name in files_of(index))


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[:len(data) // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [pytest.param(cut, marks=pytest.mark.slow), flip,
                                    pytest.param(Path.unlink, marks=pytest.mark.slow)])
def test_damage_to_any_file_is_refused_by_name(place, damage):
    """index.json that is missing is no index: then the other files in the folder are left-overs."""
    index, _ = updated(place)
    approximate.candidates(index, "hnsw")
    whole = {name: (index.folder / name).read_bytes() for name in files_of(index)}
    assert len(whole) == 1 + 2 * len(index.parts) + 1
    for name in sorted(whole):
        path = index.folder / name
        damage(path)
        if name == "index.json" and not path.exists():
            assert len(opened(place, "hnsw")) == 0
        else:
            with pytest.raises(UserError) as error:
                opened(place, "hnsw")
            said = "is missing" if damage is Path.unlink else "is damaged"
            assert f"The file {path} of the index {said}" in str(error.value) and "--rebuild" in str(error.value)
            # The old one stays until the new one is written.
            assert len(opened(place, "hnsw", rebuild=True)) == 0 and (index.folder / "index.json").exists()
        path.write_bytes(whole[name])
    assert len(opened(place, "hnsw")) == 13


def test_an_index_that_is_replaced_leaves_no_file(place):
    index, _ = updated(place)
    flip(index.folder / (index.parts[0].stem + ".npy"))
    fresh = opened(place, rebuild=True)
    update(fresh, read_folder(place / "gallery"), Colours())
    assert content(opened(place)) == expected(place) and len(files_of(fresh)) == 1 + 2 * len(fresh.parts)


@pytest.mark.parametrize(("key", "value", "said"), [
    ("weights", "b" * 64, "other weights"), ("return pattern", 1, "return pattern 3, not 1"),
    ("INPUT.SIZE_TEST", [64, 32], "INPUT.SIZE_TEST [32, 16], not [64, 32]"), ("MODEL.NEW", 1, "MODEL.NEW None, not 1")])
def test_an_index_of_other_features_is_refused(place, key, value, said):
    updated(place)
    with pytest.raises(UserError) as error:
        opened(place, origin={**ORIGIN, key: value})
    assert f"was made with {said}" in str(error.value) and "--rebuild" in str(error.value)
    assert len(opened(place, origin={**ORIGIN, key: value}, rebuild=True)) == 0


def test_an_index_of_another_gallery_is_refused_unless_that_has_moved(place):
    index, _ = updated(place)
    paint(place / "other", "00", 0)
    with pytest.raises(UserError, match=r"is of the gallery .*gallery, not of .*other; pass --rebuild"):
        open_index(index.folder, place / "other", ORIGIN, "flat", False)
    os.rename(place / "gallery", place / "moved")
    index = open_index(index.folder, place / "moved", ORIGIN, "flat", False)
    assert update(index, read_folder(place / "moved"), Colours()) == Changes(0, 0, 0)


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_folder_of_other_files_is_no_index(place, rebuild):
    with pytest.raises(UserError, match="is no folder of an index, but has other files"):
        open_index(place / "gallery", place / "gallery", ORIGIN, "flat", rebuild)
    with pytest.raises(UserError, match="is no folder of an index"):
        open_index(place / "gallery" / "RGB" / "00.png", place / "gallery", ORIGIN, "flat", rebuild)


def test_an_index_of_another_version_is_refused(place, monkeypatch):
    monkeypatch.setattr(store, "FORMAT", 2)
    updated(place)
    monkeypatch.undo()
    with pytest.raises(UserError, match="is of version 2, but this program writes version 1"):
        opened(place)


def test_names_of_any_characters_are_kept(place):
    odd = os.fsdecode(b"\xff \"quoted\" \xc3\xa9")
    paint(place / "gallery", odd, 70)
    updated(place)
    assert odd in opened(place).names


def test_an_approximate_index_follows_the_gallery(place):
    """By new triplets it grows; removed ones are not found any more, and when they are many, it is made anew."""
    index, _ = updated(place)

    def neighbours():
        """Names of the nearest three of each triplet, by the approximate index and exactly."""
        index = opened(place, "hnsw")
        features, names = index.features().take(np.arange(len(index))), index.names
        rows = approximate.candidates(index, "hnsw")(features, 3)
        exact = nearest(features, index.features(), names, 3).rows
        return [[{names[row] for row in line if row >= 0} for line in found] for found in (rows, exact)]

    def file():
        return json.loads((index.folder / "index.json").read_text())["faiss"]["hnsw"]

    found, exact = neighbours()
    first = file()
    assert found == exact and neighbours()[0] == exact and file() == first
    paint(place / "gallery", "new", 50)
    updated(place)
    found, exact = neighbours()
    assert found == exact and file() != first and not (index.folder / first).exists()
    second = file()
    (place / "gallery" / "NI" / "12.png").unlink()
    updated(place)
    found, exact = neighbours()
    assert file() == second and all(line <= other for line, other in zip(found, exact, strict=True))
    for name in ("10", "11"):
        (place / "gallery" / "NI" / f"{name}.png").unlink()
    updated(place)
    found, exact = neighbours()
    assert found == exact and file() != second


