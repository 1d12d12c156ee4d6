"""The index of a gallery on disk: it grows, notices changes, survives interruptions, and refuses what does not fit."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets.folders import read_folder
from demo_sdtps.evaluation.distances import Comparison
from demo_sdtps.retrieval import approximate, gallery
from demo_sdtps.retrieval.gallery import Changes, open_index, read_gallery, update
from demo_sdtps.retrieval.nearest import search_sets

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
    monkeypatch.setattr(gallery, "SHARD_ROWS", 4)


def paint(folder, name, seed, modalities=("RGB",)):
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, COLOURS), np.uint8)
    for modality in modalities:
        (folder / modality).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / modality / f"{name}.png")


def open_at(place, rebuild=False, origin=ORIGIN):
    return open_index(place / "index", place / "gallery", origin, rebuild)


def update_at(place, extract=None):
    """The index brought up to date, and the changes."""
    index = open_at(place)
    return index, update(index, read_folder(place / "gallery"), extract or Colours())


def content(index):
    """Features by name."""
    gallery = read_gallery(index)
    features = gallery.features.take(gallery.features.rows)
    return dict(zip(gallery.names, map(tuple, features.tolist()), strict=True))


def rows_of(place):
    triplets = read_folder(place / "gallery")
    return dict(
        zip(
            [triplet.name for triplet in triplets],
            map(tuple, Colours()(triplets).tolist()),
            strict=True,
        )
    )


def files_of(index):
    return {path.name for path in index.folder.iterdir()}


def test_new_changed_and_removed_images_alone_are_read(place):
    """New: another triplet, and another image of one; changed: other pixels; removed: a triplet, and an image of one."""
    index, changes = update_at(place)
    assert changes == Changes(new=13, changed=0, removed=0) and content(index) == rows_of(place)
    folder = place / "gallery"
    paint(folder, "new", 50)
    paint(folder, "11", 51, ["TI"])
    paint(folder, "03", 52)
    (folder / "NI" / "12.png").unlink()
    (folder / "RGB" / "07.png").unlink()
    extract = Colours()
    index, changes = update_at(place, extract)
    assert changes == Changes(new=1, changed=3, removed=1) and sorted(extract.names) == [
        "03",
        "07",
        "11",
        "new",
    ]
    assert content(index) == rows_of(place) == content(open_at(place))
    assert len(content(index)) == 13
    assert files_of(index) == {"store.json", *index.shards}


def test_an_interrupted_index_has_what_was_complete_and_continues(place):
    with pytest.raises(KeyboardInterrupt):
        update_at(place, Colours(most=8))
    index = open_at(place)
    assert content(index) == {name: row for name, row in rows_of(place).items() if name < "08"}
    rest = Colours()
    index, changes = update_at(place, rest)
    assert (
        rest.names == ["08", "09", "10", "11", "12"]
        and changes.new == 5
        and content(index) == rows_of(place)
    )


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_a_damaged_shard_is_refused_by_name_and_replaced_by_rebuild(place, damage):
    index, _ = update_at(place)
    shard = index.folder / index.shards[1]
    damage(shard)
    with pytest.raises(UserError, match=f"{shard.name} of stored features is .*--rebuild"):
        open_at(place)
    fresh = open_at(place, rebuild=True)
    # the old ones stay until the first new one is written
    assert (index.folder / index.shards[0]).exists()
    update(fresh, read_folder(place / "gallery"), Colours())
    assert content(open_at(place)) == rows_of(place) and len(files_of(fresh)) == 1 + len(
        fresh.shards
    )


def test_an_approximate_index_is_kept_until_it_is_damaged_or_the_gallery_changes(place, capsys):
    """One for each pair of sets of modalities and each distance; a gallery that lacks images is searched by these."""

    def files(*hows):
        """Of the approximate indices, by which a triplet is as near as can be to itself."""
        for how in hows:
            index = open_at(place)
            gallery = read_gallery(index)
            features = torch.from_numpy(gallery.features.take(np.arange(len(gallery))))
            hits = search_sets(
                Comparison([frozenset([name]) for name in MODALITIES], how),
                (features, gallery.present),
                gallery,
                1,
                partial(approximate.approximate, index, "hnsw"),
            )
            assert not hits.distances.any()
            printed = capsys.readouterr().out
            if how == "shared":
                assert "hnsw, NI in RGB+NI by NI, shared: recall@1 1.000" in printed
        kept = index.record["approximate"]
        return {name: index.folder / entry["file"] for name, entry in kept.items()}

    update_at(place)
    first = files("shared")
    assert len(set(first.values())) == 4 and files("shared") == first
    assert len(files("shared", "all")) == 5
    damaged = first["hnsw, NI in NI by NI, shared"]
    cut(damaged)
    second = files("shared")
    assert damaged not in second.values() and not damaged.exists()
    assert len({*first.values()} & {*second.values()}) == 3
    paint(place / "gallery", "new", 50)
    update_at(place)
    third = files("shared")
    assert not {*second.values()} & {*third.values()}
    assert not any(path.exists() for path in second.values())


def test_an_index_of_another_gallery_is_refused_unless_that_has_moved(place):
    index, _ = update_at(place)
    paint(place / "other", "00", 0)
    with pytest.raises(
        UserError, match=r"is of the gallery .*gallery, not of .*other; pass --rebuild"
    ):
        open_index(index.folder, place / "other", ORIGIN, False)
    os.rename(place / "gallery", place / "moved")
    index = open_index(index.folder, place / "moved", ORIGIN, False)
    assert update(index, read_folder(place / "moved"), Colours()) == Changes(0, 0, 0)
