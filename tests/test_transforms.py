"""Augmentation, and the normalised picture that evaluation sees."""
import random

import torch
import torch.nn.functional as F
from triplets import PLAIN, config, random_picture

from datasets.transforms import test_transform, train_transform


def test_evaluation_scales_to_minus_one_and_one(tiny_root):
    picture = random_picture()
    assert torch.allclose(test_transform(config(tiny_root))(picture), (picture / 255 - 0.5) / 0.5, atol=1e-6)


def test_evaluation_resizes_bilinearly_first(tiny_root):
    picture = random_picture(48, 40)
    resized = F.interpolate(picture[None].float(), (32, 16), mode="bilinear", antialias=True, align_corners=False)[0]
    found = test_transform(config(tiny_root))(picture)
    assert found.dtype == torch.float32 and found.shape == (3, 32, 16)
    # Rounding to whole grey levels on the way is worth half a level.
    assert (found - (resized / 255 - 0.5) / 0.5).abs().max() < 1.5 / 127.5


def test_mean_and_deviation_are_the_configurations(tiny_root):
    cfg = config(tiny_root, "INPUT.PIXEL_MEAN", "[0.1, 0.2, 0.3]", "INPUT.PIXEL_STD", "[1.0, 2.0, 4.0]")
    picture = random_picture()
    expected = (picture / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([1.0, 2.0, 4.0])[:, None, None]
    assert torch.allclose(test_transform(cfg)(picture), expected, atol=1e-6)


def test_evaluation_is_not_random(tiny_root):
    transform, picture = test_transform(config(tiny_root)), random_picture(48, 40)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = transform(picture)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(transform(picture), first)


def test_training_without_chance_is_the_picture(tiny_root):
    picture = random_picture()
    assert torch.allclose(train_transform(config(tiny_root, *PLAIN))(picture), (picture / 255 - 0.5) / 0.5, atol=1e-6)


def test_training_resizes_bicubically(tiny_root):
    picture = random_picture(64, 32)
    resized = F.interpolate(picture[None].float(), (32, 16), mode="bicubic", antialias=True, align_corners=False)[0]
    found = train_transform(config(tiny_root, *PLAIN))(picture)
    assert (found - (resized.clamp(0, 255) / 255 - 0.5) / 0.5).abs().max() < 2.5 / 127.5
    assert not torch.equal(found, test_transform(config(tiny_root))(picture))


def test_a_certain_flip_mirrors(tiny_root):
    picture = random_picture()
    found = train_transform(config(tiny_root, *PLAIN, "INPUT.PROB", "1.0"))(picture)
    assert torch.allclose(found, (picture.flip(2) / 255 - 0.5) / 0.5, atol=1e-6)


def test_half_the_pictures_are_flipped(tiny_root):
    transform, picture = train_transform(config(tiny_root, *PLAIN, "INPUT.PROB", "0.5")), random_picture()
    torch.manual_seed(0)
    mirrored = (picture.flip(2) / 255 - 0.5) / 0.5
    flips = sum(torch.allclose(transform(picture), mirrored, atol=1e-6) for _ in range(200))
    assert 70 < flips < 130


def test_padding_moves_the_picture_within_a_black_border(tiny_root):
    cfg = config(tiny_root, *PLAIN, "INPUT.PADDING", "3")
    transform, picture = train_transform(cfg), random_picture()
    padded = F.pad(((picture / 255 - 0.5) / 0.5), (3, 3, 3, 3), value=-1.0)  # black before normalisation
    crops = {(top, left): padded[:, top:top + 32, left:left + 16] for top in range(7) for left in range(7)}
    torch.manual_seed(0)
    seen = set()
    for _ in range(60):
        found = transform(picture)
        places = [place for place, crop in crops.items() if torch.allclose(found, crop, atol=1e-6)]
        assert len(places) == 1
        seen.add(places[0])
    assert {top for top, _ in seen} == set(range(7)) and {left for _, left in seen} == set(range(7))


def test_certain_erasing_replaces_one_rectangle_by_noise(tiny_root):
    cfg = config(tiny_root, *PLAIN, "INPUT.RE_PROB", "1.0")
    transform, picture = train_transform(cfg), random_picture()
    plain = (picture / 255 - 0.5) / 0.5
    torch.manual_seed(0)
    random.seed(0)
    for _ in range(20):
        found = transform(picture)
        erased = (found - plain).abs().amax(0) > 1e-6
        rows, columns = erased.any(1).nonzero()[:, 0], erased.any(0).nonzero()[:, 0]
        box = erased[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]
        assert box.all() and 0.01 < box.numel() / erased.numel() < 0.5
        noise = found[:, erased]
        assert noise.unique().numel() > 0.9 * noise.numel()  # per pixel, not one colour
        assert not torch.allclose(noise[0], noise[1])
