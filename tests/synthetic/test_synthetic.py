"""The synthetic triplets: files, determinism, and that identity is spread over the modalities and nowhere else."""

import json
import os
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from commands import contents
from PIL import Image

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets.published import MARKER
from synthetic import commands as synthetic
from synthetic import pedestrians, triplets, vehicles
from synthetic.scene import CAMERAS

NAME = re.compile(r"(\d{6})_cam([1-4])_([01])_(\d{2})")
SMALL = "--identities 3 --test_identities 2 --images_per_camera 2 --height 64 --width 32"
LOOK = vehicles.Look(4, 3, 0, 2, 3)
VEHICLES = "--vehicles --identities 2 --test_identities 1 --images_per_camera 1"


def make(root, *more, sizes=SMALL):
    synthetic.triplets(["--root", str(root), *sizes.split(), "--workers", "1", *more])
    return Path(root) / "RGBNT201"


def images_of(kind, identity, seed=0, camera=0, night=False):
    draws = np.random.default_rng(seed)
    return triplets.draw(kind.draw_object, identity, CAMERAS[camera], night, kind.SIZE, draws)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("data"))


def test_layout_and_names(data):
    people = {}
    for split in ("train_171", "test"):
        names = sorted(path.stem for path in (data / split / "RGB").iterdir())
        for kind in MODALITIES:
            files = sorted(path.name for path in (data / split / kind).iterdir())
            assert files == [f"{name}.jpg" for name in names]
        images = Counter(NAME.fullmatch(name).groups()[:2] for name in names)
        people[split] = {int(identity) for identity, _ in images}
        assert len(images) == 4 * len(people[split]) and set(images.values()) == {2}
    assert people == {"train_171": {1, 2, 3}, "test": {4, 5}}
    assert json.loads((data / MARKER).read_text())["triplets"] == {"train_171": 24, "test": 16}


def test_same_seed_same_bytes_whatever_the_workers(data, tmp_path):
    again = make(tmp_path / "again", "--workers", "2")
    assert contents(again) == contents(data)


def test_skipped_identities_leave_the_others_as_they_are(data, tmp_path):
    """Sets of one seed that skip each other's persons share none."""
    skipped = contents(make(tmp_path, "--skip_identities", "2", "--identities", "1"))
    assert {name: skipped[name] for name in skipped if name.endswith(".jpg")} == {
        name: image for name, image in contents(data).items() if re.search(r"/00000[345]_", name)
    }


def test_only_the_three_looks_together_are_unique():
    looks = [look for look, _ in pedestrians.make_identities(140, 0)]
    assert len(set(looks)) == 140
    for place, count in enumerate(pedestrians.LOOK_SHAPE):
        shared = Counter(look[place] for look in looks)
        assert len(shared) == count and min(shared.values()) >= 4
    for one, other in ((0, 1), (0, 2), (1, 2)):  # so that no modality can be left out
        assert len({(look[one], look[other]) for look in looks}) < 130


def other_person(field):
    look, build = pedestrians.make_identities(1, seed=0)[0]
    other = look._replace(**{field: (getattr(look, field) + 5) % 12})
    return [images_of(pedestrians, (each, build)) for each in (look, other)]


def other_vehicle(field):
    count = vehicles.LOOK_SHAPE[LOOK._fields.index(field)]
    other = LOOK._replace(**{field: (getattr(LOOK, field) + 3) % count})
    return [images_of(vehicles, look) for look in (LOOK, other)]


@pytest.mark.parametrize("pair", [other_person, other_vehicle])
@pytest.mark.parametrize("modality", MODALITIES)
def test_a_look_is_seen_in_its_own_modality_alone(pair, modality):
    ours, theirs = pair(modality.lower())
    for name in MODALITIES:
        assert np.array_equal(ours[name], theirs[name]) == (name != modality)
    differs = (ours[modality] != theirs[modality]).any(-1)
    assert 0.01 < differs.mean() < 0.9


def test_background_does_not_depend_on_the_identity():
    for camera, seed in product(range(len(CAMERAS)), range(2)):
        identities = pedestrians.make_identities(4, seed=3)
        people = [images_of(pedestrians, one, seed, camera, camera == 3) for one in identities]
        for modality in MODALITIES:
            views = np.stack([images[modality] for images in people])
            same = (views == views[0]).all(axis=(0, -1))
            assert same.mean() > 0.1 and same[:5].mean() > 0.6  # above the heads
            assert (camera == 3 and modality == "RGB") or views[0][same].std() > 3


def test_a_run_with_the_same_arguments_writes_nothing_and_with_others_needs_overwrite(
    tmp_path, capsys
):
    folder = make(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    make(tmp_path, "--workers", "2")
    assert "up to date" in capsys.readouterr().out
    with pytest.raises(UserError, match="--overwrite"):
        make(tmp_path, "--seed", "5")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    make(tmp_path, "--seed", "5", "--overwrite")
    assert os.listdir(tmp_path) == ["RGBNT201"]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} != before


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_folder_this_tool_did_not_make_is_left_alone(tmp_path, flags):
    real = tmp_path / "RGBNT201" / "train_171" / "RGB" / "000001_cam1_0_00.jpg"
    real.parent.mkdir(parents=True)
    real.write_bytes(b"the real data set")
    with pytest.raises(UserError, match="--root"):
        make(tmp_path, *flags)
    assert contents(tmp_path) == {str(real.relative_to(tmp_path)): b"the real data set"}


def test_vehicles_are_their_seed_s_whatever_the_workers(tmp_path):
    def draw(name, *more):
        return contents(make(tmp_path / name, *more, sizes=VEHICLES))

    data, again = draw("data"), draw("again", "--workers", "2")
    assert data == again
    loose = draw("loose", "--loose", "--height", "32")
    images = [name for name in data if name.endswith(".jpg")]
    assert len(images) == 3 * len(CAMERAS) * 3 == len(data) - 1
    assert all(data[name] != loose[name] for name in images)
    ours, theirs = (json.loads(files[MARKER])["arguments"] for files in (data, loose))
    assert (ours["height"], ours["width"], ours["vehicles"]) == (64, 128, True)
    assert theirs == ours | {"height": 32, "loose": True}
    with Image.open(next((tmp_path / "data").rglob("*.jpg"))) as image:
        assert image.size == (128, 64)
