"""The synthetic vehicles: files, masks, and that each look is seen in its own modality and the shape in all."""

import json
import re
from itertools import product

import numpy as np
import pytest
from commands import contents
from PIL import Image, ImageFilter

from demo_sdtps.commands import make_synthetic
from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets.synthetic import MARKER
from demo_sdtps.synthetic import vehicles
from demo_sdtps.synthetic.triplets import CAMERAS
from demo_sdtps.synthetic.vehicles import LOOK_SHAPE, Look, draw_triplet, make_identities

LOOK = Look(4, 3, 0, 2, 3)
SMALL = ["--identities", "2", "--test_identities", "1", "--images_per_camera", "1"]


def make(root, *more):
    make_synthetic.main(["--root", str(root), *SMALL, "--workers", "1", "--vehicles", *more])
    return contents(root / "RGBNT201")


def triplet(look, seed=0, camera=0, unaligned=False):
    return draw_triplet(look, camera, camera == 3, 64, 128, np.random.default_rng(seed), unaligned)


def near(mask, size):
    """Pixels with one of a mask (H, W) in the square of `size` pixels around them."""
    return np.asarray(Image.fromarray(mask).convert("L").filter(ImageFilter.MaxFilter(size))) > 0


def test_same_seed_same_bytes_whatever_the_workers(tmp_path):
    data, again = make(tmp_path / "data"), make(tmp_path / "again", "--workers", "2")
    assert data == again
    other = make(tmp_path / "other", "--seed", "1")
    loose = make(tmp_path / "loose", "--loose", "--height", "32")
    images = [name for name in data if re.search(r"/\d{6}_cam[1-4]_[01]_00\.(jpg|png)$", name)]
    assert len(images) == 3 * len(CAMERAS) * 4 == len(data) - 1
    assert all(data[name] != loose[name] for name in images)
    assert not {data[name] for name in images} & set(other.values())
    ours, theirs = (json.loads(files[MARKER])["arguments"] for files in (data, loose))
    assert (ours["height"], ours["width"], ours["vehicles"]) == (64, 128, True)
    assert theirs == ours | {"height": 32, "loose": True}
    with Image.open(next((tmp_path / "data").rglob("*.jpg"))) as image:
        assert image.size == (128, 64)


def test_vehicles_differ_from_their_predecessors_in_one_look():
    looks = make_identities(40, seed=3)
    assert len(set(looks)) == 40
    changes = [
        [part for part, pair in enumerate(zip(*pair, strict=True)) if len(set(pair)) == 2]
        for pair in zip(looks[::2], looks[1::2], strict=True)
    ]
    assert sorted(changes) == [[part] for part in range(len(LOOK_SHAPE)) for _ in range(4)]


@pytest.mark.parametrize("unaligned", [False, True])
def test_the_mask_is_where_the_vehicle_is_drawn(monkeypatch, unaligned):
    """Where a black vehicle and a white one differ, but for the lens's blur at the edge."""
    real = vehicles._materials
    for camera, seed in product(range(len(CAMERAS)), range(3)):
        drawn = []
        for value in (0.0, 1.0):

            def plain(*arguments, value=value):
                parts = dict.fromkeys(real(*arguments), ((value,) * 3, value, value))
                return parts | {"shadow": ((0.1,) * 3, 0.1, 0.1)}

            monkeypatch.setattr(vehicles, "_materials", plain)
            drawn.append(triplet(LOOK, seed, camera, unaligned))
        (black, mask), (white, same) = drawn
        assert (mask == same).all()
        edge = near(mask, 7) & near(~mask, 7)
        for name in ("NI", "TI"):  # RGB is dark at night
            differs = np.abs(black[name].astype(int) - white[name]).max(-1) > 40
            assert (differs == mask)[~edge].all()


def test_vehicles_fill_the_picture_and_its_borders_cut_them():
    masks = np.array([triplet(look, seed)[1] for seed, look in enumerate(make_identities(12, 0))])
    assert np.mean(masks) > 0.65 and masks.mean((1, 2)).min() > 0.4
    sides = [masks[:, 0], masks[:, -1], masks[:, :, 0], masks[:, :, -1]]
    assert np.mean([side.any(-1) for side in sides]) > 0.65
    loose = [triplet(LOOK, seed, unaligned=True)[1].mean() for seed in range(12)]
    assert np.mean(loose) < 0.45


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_look_is_seen_in_its_own_modality_alone(modality):
    field = modality.lower()
    other = LOOK._replace(
        **{field: (getattr(LOOK, field) + 3) % LOOK_SHAPE[Look._fields.index(field)]}
    )
    (ours, mask), (theirs, same) = triplet(LOOK), triplet(other)
    assert (mask == same).all()
    for name in MODALITIES:
        assert np.array_equal(ours[name], theirs[name]) == (name != modality)
    assert (ours[modality] == theirs[modality])[~near(mask, 13)].all()
