"""Loose crops: the same persons and surroundings as the standard set, with the person anywhere in the picture."""
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets.synthetic import MARKER
from demo_sdtps.synthetic.pedestrians import CAMERAS, draw_triplet, is_night, make_identities
from demo_sdtps.tools import make_synthetic

SMALL = ["--identities", "2", "--test_identities", "1", "--images_per_camera", "1", "--workers", "1", "--height", "64",
         "--width", "32"]


def make(root, *more):
    make_synthetic.main(["--root", str(root), *SMALL, *more])
    return Path(root) / "RGBNT201"


def triplets(loose, count=12):
    """(images, mask) of `count` persons from each camera, as the command draws them."""
    found = []
    for number, identity in enumerate(make_identities(count, seed=0), start=1):
        for camera in range(len(CAMERAS)):
            rng = np.random.default_rng([0, 2, number, camera, 0])
            night = is_night(camera, rng)
            found.append(draw_triplet(identity, camera, night, 64, 32, rng, loose))
    return found


@pytest.fixture(scope="module")
def standard_and_loose():
    return triplets(False), triplets(True)


def spans(masks, axis):
    """First and last row (axis 1) or column (axis 0) of each mask, in shares of the picture."""
    there = [np.flatnonzero(mask.any(axis)) / mask.shape[1 - axis] for mask in masks]
    return np.array([(places[0], places[-1]) for places in there]).T


def test_the_person_stands_anywhere_at_half_to_full_height(standard_and_loose):
    standard, loose = ([mask for _, mask in drawn] for drawn in standard_and_loose)
    for axis, ratio in ((1, 2), (0, 1.5)):
        middles = [np.mean(spans(masks, axis), axis=0) for masks in (standard, loose)]
        assert middles[1].std() > ratio * middles[0].std()
        assert middles[1].mean() == pytest.approx(0.5, abs=0.1)
    top, bottom = spans(loose, 1)
    heights = bottom - top
    assert heights.max() > 0.9 and np.quantile(heights, 0.1) < 0.6 and heights.min() > 0.25


def test_surroundings_are_those_of_the_standard_set(standard_and_loose):
    """Bit for bit where neither person is, nor the lens's blur of it; a bystander in the background may be smaller."""
    same = []
    for (images, mask), (loose_images, loose_mask) in zip(*standard_and_loose, strict=True):
        both = Image.fromarray(np.uint8(mask | loose_mask) * 255)
        outside = np.asarray(both.filter(ImageFilter.MaxFilter(9))) == 0
        same.append(all(np.array_equal(images[modality][outside], loose_images[modality][outside]) for modality in MODALITIES))
    assert np.mean(same) > 0.5


def test_the_recipe_records_it_and_the_standard_one_is_unchanged(tmp_path):
    standard, loose = make(tmp_path / "standard"), make(tmp_path / "loose", "--loose")
    recipes = [json.loads((folder / MARKER).read_text())["arguments"] for folder in (standard, loose)]
    assert "loose" not in recipes[0] and recipes[1] == recipes[0] | {"loose": True}
    names = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (standard, loose)]
    assert names[0] == names[1]  # with the same identities, cameras and nights
    masks = [np.asarray(Image.open(folder / "test" / "MASK" / "000003_cam1_0_00.png")) for folder in (standard, loose)]
    assert not np.array_equal(*masks)
