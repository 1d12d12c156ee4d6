"""Augmentation, and the normalised image that evaluation sees."""

import math
import random
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from numeric import assert_close, generator, shift_seed, tolerance
from PIL import Image
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import functional
from triplets import PLAIN, SCALED, config, normalise

from demo_sdtps.datasets.transforms import TrainTransform, erase, resize_and_normalise, shift

JOINT = ["INPUT.JOINT_AUGMENTATION", "True"]


def random_image(height=32, width=16, seed=0):
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=generator(seed))


def augment(transform, image, rng=random):
    """One image by a transform of samples."""
    return transform([image], rng)[0]


def test_evaluation_resizes_bilinearly_first(tiny_root):
    image = random_image(48, 40)
    resized = F.interpolate(
        image[None].double(), (32, 16), mode="bilinear", antialias=True, align_corners=False
    )[0]
    actual = resize_and_normalise(config(tiny_root), (32, 16))(image)
    assert actual.dtype == torch.float32 and actual.shape == (3, 32, 16)
    # Rounding to whole grey levels on the way is worth half a level.
    assert (actual - normalise(resized)).abs().max() < 1.5 / 127.5


def test_mean_and_deviation_are_the_configurations(tiny_root):
    cfg = config(
        tiny_root, "INPUT.PIXEL_MEAN", "[0.1, 0.2, 0.3]", "INPUT.PIXEL_STD", "[1.0, 2.0, 4.0]"
    )
    image = random_image()
    mean, std = (
        torch.tensor(values).double()[:, None, None] for values in ((0.1, 0.2, 0.3), (1, 2, 4))
    )
    actual = resize_and_normalise(cfg, cfg.INPUT.SIZE_TEST)(image)
    assert_close(actual, (image.double() / 255 - mean) / std, *SCALED)


def test_a_move_is_padding_and_a_crop():
    image = random_image()
    padded = F.pad(image, (60, 60, 60, 60)).float()
    for down, right in product((-31, -5, 0, 3, 31), (-15, -4, 0, 6, 15)):
        expected = padded[:, 60 - down : 92 - down, 60 - right : 76 - right]
        assert torch.equal(shift(image, down, right), expected), (down, right)


@pytest.mark.parametrize("size", [(32, 16), (48, 40), (20, 33)])
def test_the_same_draws_give_what_pillow_and_torchvision_give(tiny_root, size):
    cfg = config(tiny_root, "INPUT.PROB", "0.5", "INPUT.PADDING", "3", "INPUT.RE_PROB", "0.0")
    transform, image = TrainTransform(cfg), random_image(*size)
    as_pillow = Image.fromarray(image.permute(1, 2, 0).numpy())
    for seed in range(shift_seed(), shift_seed(20)):
        random.seed(seed)
        actual = augment(transform, image)
        random.seed(seed)
        flipped, down, right = random.random() < 0.5, random.randint(-3, 3), random.randint(-3, 3)
        resized = functional.resize(as_pillow, [32, 16], functional.InterpolationMode.BICUBIC)
        padded = functional.pad(functional.hflip(resized) if flipped else resized, [3])
        cropped = functional.crop(padded, 3 - down, 3 - right, 32, 16)
        expected = functional.to_tensor(cropped) * 2 - 1
        # Where an image is resized, rounding in each of the two passes may be worth a grey level.
        levels = 0 if size == (32, 16) else 2
        assert (actual - expected).abs().max() < levels / 127.5 + tolerance(*SCALED, *SCALED)


@pytest.mark.parametrize("size", [(64, 32), (32, 64), (9, 7)])
def test_the_same_draws_erase_what_timm_erases(size):
    """timm draws one number before, for whether to erase, then the rectangle as Zhong et al. (2020) do."""
    theirs = RandomErasing(1.0, mode="pixel", max_count=1, device="cpu")
    for seed in range(shift_seed(), shift_seed(200)):
        draw = random.Random(seed)
        draw.random()
        ours = erase(torch.full((3, *size), -1.0), draw)
        random.seed(seed)
        expected = theirs(torch.full((3, *size), -1.0))
        assert torch.equal(ours != -1, expected != -1)


def test_half_of_the_images_are_erased_with_normal_noise(tiny_root):
    """Per pixel and channel, of mean 0 and deviation 1."""
    transform = TrainTransform(config(tiny_root, *PLAIN[:-1], "0.5"))
    black = torch.zeros(3, 32, 16, dtype=torch.uint8)
    random.seed(shift_seed())
    noise = []
    for _ in range(600):
        actual = augment(transform, black)
        erased = (actual != -1).any(0)
        if erased.any():
            noise.append(actual[:, erased].flatten())
            assert noise[-1].unique().numel() > 0.9 * noise[-1].numel()
    assert abs(len(noise) - 300) < 6 * 150**0.5  # standard errors
    noise = torch.cat(noise).double()
    error, inner = 6 / len(noise) ** 0.5, math.erf(0.5**0.5)
    assert abs(noise.mean()) < error and abs(noise.std() - 1) < error / 2**0.5
    assert abs((noise.abs() < 1).double().mean() - inner) < error * (inner * (1 - inner)) ** 0.5


def test_joint_augmentation_is_the_recorded_geometry_of_each(tiny_root):
    """Flip, padding and cropping one after the other, by what the recorded seed draws."""
    images = [random_image(seed=seed) for seed in range(3)]
    transform = TrainTransform(
        config(tiny_root, *JOINT, "INPUT.RE_PROB", "0.0", "INPUT.PADDING", "4")
    )
    for seed in range(shift_seed(), shift_seed(20)):
        draw = random.Random(seed)
        flip, down, right = draw.random() < 0.5, draw.randint(-4, 4), draw.randint(-4, 4)
        for image, original in zip(transform(images, random.Random(seed)), images, strict=True):
            moved = F.pad(original.flip(2) if flip else original, (4,) * 4)
            moved = moved[:, 4 - down : 36 - down, 4 - right : 20 - right]
            assert_close(image, normalise(moved), *SCALED)


def test_joint_augmentation_erases_each_image_apart(tiny_root):
    transform = TrainTransform(config(tiny_root, *JOINT, *PLAIN[:-1], "1.0"))
    white = torch.full((3, 32, 16), 255, dtype=torch.uint8)
    images = transform([white, white, white], random.Random(0))
    erased = [(image != 1).any(0) for image in images]
    assert all(area.any() and not area.all() for area in erased)
    assert not torch.equal(erased[0], erased[1]) and not torch.equal(erased[1], erased[2])


@pytest.mark.parametrize("absent", [(), (0,), (0, 2)])
def test_dropout_keeps_one_of_the_present_modalities(tiny_root, absent):
    """Each of them in some draw, also where all would be dropped."""
    transform = TrainTransform(config(tiny_root, *PLAIN, "INPUT.MODALITY_DROPOUT", "0.999"))
    images = [None if place in absent else random_image(seed=place) for place in range(3)]
    remaining = []
    for seed in range(shift_seed(), shift_seed(100)):
        inputs = transform(images, random.Random(seed))
        assert len(inputs) == 3
        remaining.append({place for place, image in enumerate(inputs) if image.any()})
    assert all(remaining) and set.union(*remaining) == {0, 1, 2} - set(absent)
