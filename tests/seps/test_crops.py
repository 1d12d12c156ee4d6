"""The images of image-text matching: random crops in training, resized in evaluation, beside torchvision's."""

import random

import pytest
import torch
import torch.nn.functional as F
from numeric import assert_close, shift_seed, tolerance
from torchvision.transforms import v2
from triplets import SCALED, normalise, random_image
from yacs.config import CfgNode

from seps.captions import CROP_ASPECT, CropTransform, crop_box


def config(**values):
    """INPUT with these values."""
    normalisation = {"PIXEL_MEAN": [0.5] * 3, "PIXEL_STD": [0.5] * 3}
    return CfgNode(
        {"INPUT": {"SIZE": [32, 32], "PROB": 0.5, "MIN_CROP": 0.5} | normalisation | values}
    )


def assert_resized(actual, image):
    """An input of the network is the image (3, h, w), resized by bicubic interpolation in float64."""
    expected = F.interpolate(
        image[None].double(), actual.shape[1:], mode="bicubic", antialias=True, align_corners=False
    )[0].clamp(0, 255)
    assert actual.dtype == torch.float32
    # whole grey levels on the way
    assert (actual - normalise(expected)).abs().max() < 2.5 / 127.5


def test_a_crop_is_a_part_of_the_image_resized():
    cfg = config(PROB=0.0, MIN_CROP=0.3, SIZE=[16, 24])
    # no value is cut between the two passes of the bicubic filter
    image = random_image(48, 60) // 3 + 80
    for seed in range(shift_seed(), shift_seed(20)):
        top, left, rows, columns = crop_box(48, 60, 0.3, random.Random(seed))
        actual = CropTransform(cfg)(image, random.Random(seed))
        assert actual.shape == (3, 16, 24)
        assert_resized(actual, image[:, top : top + rows, left : left + columns])


def test_crops_have_torchvisions_distribution():
    """Area, shape and middle of many crops, beside RandomResizedCrop's."""
    draw, count = random.Random(shift_seed()), 4000
    ours = torch.tensor([crop_box(90, 120, 0.3, draw) for _ in range(count)]).double()
    torch.manual_seed(shift_seed())
    theirs_transform = v2.RandomResizedCrop(8, scale=(0.3, 1.0), ratio=CROP_ASPECT)
    image = torch.zeros(3, 90, 120, dtype=torch.uint8)
    crops = [theirs_transform.make_params([image]) for _ in range(count)]
    names = ("top", "left", "height", "width")
    theirs = torch.tensor([[box[name] for name in names] for box in crops]).double()
    for boxes in (ours, theirs):
        assert (boxes >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor([90, 120])).all()

    def measures(boxes):
        top, left, rows, columns = boxes.T
        centre = (top + rows / 2) / 90, (left + columns / 2) / 120
        return torch.stack([rows * columns / 10800, (columns / rows).log(), *centre])

    for mine, other in zip(measures(ours), measures(theirs), strict=True):
        error = (mine.var() / count + other.var() / count).sqrt()
        # Six standard errors; that of the ratio of the deviations is at most 1.6 %.
        assert abs(mine.mean() - other.mean()) < 6 * error and 0.9 < mine.std() / other.std() < 1.1


def test_a_crop_may_be_as_high_or_as_wide_as_the_image():
    assert {crop_box(3, 3, 0.3, random.Random(seed))[2:] for seed in range(99)} >= {(2, 3), (3, 2)}


@pytest.mark.parametrize(
    ("height", "width", "box"), [(10, 100, (0, 43, 10, 13)), (100, 10, (43, 0, 13, 10))]
)
def test_of_a_long_image_the_middle_is_taken(height, width, box):
    assert all(crop_box(height, width, 0.9, random.Random(seed)) == box for seed in range(20))


def test_half_the_images_are_flipped():
    image, transform = random_image(32, 32), CropTransform(config(MIN_CROP=1.0))
    plain = normalise(image)
    flips = 0
    for seed in range(shift_seed(), shift_seed(200)):
        actual = transform(image, random.Random(seed))
        flipped = bool((actual - plain.flip(2)).abs().max() < tolerance(*SCALED))
        flips += flipped
        assert_close(actual, plain.flip(2) if flipped else plain, *SCALED)
    assert abs(flips - 100) < 6 * 50**0.5  # standard errors
