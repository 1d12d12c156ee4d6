"""Foreground masks of a triplet, from their files to the batch, and flip and crop that are drawn once per triplet."""
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from layouts import WRITERS
from numeric import assert_close, seeded
from PIL import Image
from triplets import PLAIN, SCALED, config, message_of, normalised, random_image

from demo_sdtps.config import MODALITIES
from demo_sdtps.config.scores import MASK
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import TripletDataset, batches, test_loader, train_loader
from demo_sdtps.datasets.masks import mask_path
from demo_sdtps.datasets.transforms import JointTrainTransform, TrainTransform

JOINT = ["INPUT.JOINT_AUGMENTATION", "True", "MODEL.SLIM_BLOCKS", "[2]", "MODEL.SLIM_KEEP", "[0.5]"]
SUPERVISED, TRUE_MASK = ([*JOINT, "MODEL.SLIM_SCORE", score] for score in ("supervised", "mask"))


def samples_of(cfg):
    return read_splits(cfg, ("train",))["train"]


def epoch(root, *opts):
    cfg = config(root, *opts)
    return list(batches(train_loader(cfg, samples_of(cfg))))


def coordinates():
    """Three images and a mask of 32×16 pixels whose values tell the place; no pixel is 0."""
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(16), indexing="ij")
    place = (8 + 6 * rows + 3 * columns).byte()
    return place.expand(3, -1, -1), place.expand(3, -1, -1) // 2, place.expand(3, -1, -1) + 10, place[None]


def test_with_joint_augmentation_every_pixel_is_the_same_place_in_all(tiny_root):
    transform = JointTrainTransform(config(tiny_root, *JOINT, "INPUT.RE_PROB", "0.0", "INPUT.PADDING", "5"))
    seen = set()
    for seed in range(40):
        rgb, near, thermal, mask = transform(coordinates(), random.Random(seed))
        rgb, near, thermal = (((image + 1) * 127.5).round() for image in (rgb, near, thermal))
        mask = (mask * 255).round()
        inside = mask > 0
        assert torch.equal(rgb, mask.expand_as(rgb)) and torch.equal(near, (mask // 2).expand_as(near))
        assert torch.equal(thermal, ((mask + 10) * inside).expand_as(thermal))
        seen.add(tuple(mask[0, 12:14, 8].tolist()))
    assert len(seen) > 10


def test_joint_augmentation_is_the_recorded_geometry_of_each(tiny_root):
    """Flip, padding and cropping one after the other, by what the recorded seed draws."""
    images = [random_image(seed=seed) for seed in range(3)]
    mask = random_image(seed=3)[:1]
    transform = JointTrainTransform(config(tiny_root, *JOINT, "INPUT.RE_PROB", "0.0", "INPUT.PADDING", "4"))
    for seed in range(seeded(), seeded(20)):
        draw = random.Random(seed)
        flip, down, right = draw.random() < 0.5, draw.randint(-4, 4), draw.randint(-4, 4)

        def slow(image, flip=flip, top=4 - down, left=4 - right):
            image = image.flip(2) if flip else image
            return F.pad(image, (4,) * 4)[:, top:top + 32, left:left + 16]

        *found, found_mask = transform([*images, mask], random.Random(seed))
        for image, original in zip(found, images, strict=True):
            assert_close(image, normalised(slow(original)), *SCALED)
        assert_close(found_mask, slow(mask).double() / 255, 1)


def test_erasing_stays_apart_and_spares_the_mask(tiny_root):
    transform = JointTrainTransform(config(tiny_root, *JOINT, *PLAIN[:-1], "1.0"))
    white = [torch.full((3, 32, 16), 255, dtype=torch.uint8)] * 3 + [torch.full((1, 32, 16), 255, dtype=torch.uint8)]
    *images, mask = transform(white, random.Random(0))
    erased = [(image != 1).any(0) for image in images]
    assert all(part.any() and not part.all() for part in erased)
    assert not torch.equal(erased[0], erased[1]) and not torch.equal(erased[1], erased[2])
    assert torch.equal(mask, torch.ones(1, 32, 16))


def test_without_the_key_the_draws_are_those_of_each_image_in_turn(tiny_root):
    """From one generator per triplet: flip, two shifts and the erasing of RGB, then those of NI, then of TI."""
    cfg = config(tiny_root, "INPUT.RE_PROB", "0.0")
    sample = samples_of(cfg)[0]
    images = TripletDataset([sample], [0], TrainTransform(config(tiny_root, *PLAIN)), cache=False)[0][0]
    dataset = train_loader(cfg, samples_of(cfg)).dataset
    for seed in range(10):
        draw = random.Random(seed)
        for image, found in zip(images, dataset[0, seed][0], strict=True):
            image = image.flip(2) if draw.random() < 0.5 else image
            padding = cfg.INPUT.PADDING
            down, right = draw.randint(-padding, padding), draw.randint(-padding, padding)
            draw.random()  # of erasing
            padded = F.pad(image, (padding,) * 4, value=-1.0)
            top, left = padding - down, padding - right
            assert torch.equal(found, padded[:, top:top + 32, left:left + 16])


def test_batches_have_the_masks_of_their_files(tiny_root):
    cfg = config(tiny_root, *TRUE_MASK)
    samples = samples_of(cfg)
    masks = torch.cat([images[MASK] for images, *_ in batches(test_loader(cfg, samples))])
    files = [Path(sample.paths[0].replace("/RGB/", "/MASK/")).with_suffix(".png") for sample in samples]
    expected = np.stack([np.asarray(Image.open(file)) for file in files])
    assert masks.dtype == torch.float32 and masks.shape == (48, 1, 32, 16)
    assert_close(masks[:, 0], expected / 255, 1)
    for images, *_ in epoch(tiny_root, *SUPERVISED):
        assert list(images) == [*MODALITIES, MASK] and images[MASK].shape == (8, 1, 32, 16)
        assert 0 < images[MASK].mean() < 1 and images[MASK].min() == 0 and images[MASK].max() == 1


def test_masks_are_read_only_where_the_score_reads_them(tiny_root):
    cfg = config(tiny_root, *SUPERVISED)
    assert list(next(batches(test_loader(cfg, samples_of(cfg))))[0]) == list(MODALITIES)
    assert list(epoch(tiny_root, *JOINT)[0][0]) == list(epoch(tiny_root)[0][0]) == list(MODALITIES)


@pytest.mark.parametrize("opts", [["DATALOADER.NUM_WORKERS", "2", "DATASETS.CACHE", "no"], ["DATALOADER.NUM_WORKERS", "1"],
                                  ["DATASETS.CACHE", "no"]], ids=" ".join)
def test_neither_processes_nor_the_cache_change_masks(tiny_root, opts):
    expected = epoch(tiny_root, *SUPERVISED, "DATASETS.CACHE", "yes")
    for ours, theirs in zip(epoch(tiny_root, *SUPERVISED, *opts), expected, strict=True):
        assert list(ours[0]) == list(theirs[0]) == [*MODALITIES, MASK]
        assert all(torch.equal(ours[0][name], theirs[0][name]) for name in ours[0])


def test_a_mask_of_another_size_is_resized_bilinearly(own_root):
    cfg = config(own_root, *TRUE_MASK, "INPUT.PROB", "0.0", "INPUT.PADDING", "0")
    samples = samples_of(cfg)
    large = random_image(64, 48)[:1]
    for sample in samples:
        Image.fromarray(large[0].numpy()).save(mask_path(sample))
    expected = F.interpolate(large[None].double(), (32, 16), mode="bilinear", antialias=True, align_corners=False) / 255
    for loader in (train_loader(cfg, samples), test_loader(cfg, samples)):
        for images, *_ in batches(loader):
            # Rounding to whole levels in each of the two passes is worth half a level.
            assert (images[MASK] - expected).abs().max() < 1.5 / 255


def test_masks_of_images_side_by_side(tmp_path):
    """In MASK/ beside the images; as large as one modality."""
    samples = WRITERS["RGBNT100"](tmp_path)["train"]
    cfg = config(tmp_path, *TRUE_MASK, "DATASETS.NAMES", "RGBNT100", "MODEL.SIE_CAMERA", "False")
    folder = tmp_path / "RGBNT100" / "rgbir" / "bounding_box_train" / "MASK"
    assert str(folder) in message_of(test_loader, cfg, samples)
    folder.mkdir()
    for level, sample in enumerate(samples):
        Image.new("L", (256, 128), level).save(folder / f"{Path(sample.paths[0]).stem}.png")
    masks = torch.cat([images[MASK] for images, *_ in batches(test_loader(cfg, samples))])
    levels = torch.arange(len(samples)).double() / 255
    assert_close(masks, levels[:, None, None, None].expand(-1, 1, 32, 16), 1)


@pytest.mark.parametrize("make", [train_loader, test_loader])
def test_missing_masks_are_one_sentence(own_root, make):
    cfg = config(own_root, *TRUE_MASK)
    samples = samples_of(cfg)
    gone = mask_path(samples[5])
    gone.unlink()
    message = message_of(make, cfg, samples)
    assert f"the mask {gone} is missing" in message
    assert "MODEL.SLIM_SCORE 'mask'" in message and "tools/make_masks.py" in message and "\n" not in message
    for path in gone.parent.iterdir():
        path.unlink()
    gone.parent.rmdir()
    assert f"the folder {gone.parent} is missing" in message_of(make, cfg, samples)


@pytest.mark.parametrize("opts", [["DATASETS.CACHE", "yes"], ["DATASETS.CACHE", "no"],
                                  ["DATASETS.CACHE", "no", "DATALOADER.NUM_WORKERS", "1"]], ids=" ".join)
def test_a_damaged_mask_is_one_sentence(own_root, no_process_left, opts):
    cfg = config(own_root, *TRUE_MASK, *opts)
    samples = samples_of(cfg)
    damaged = mask_path(samples[5])
    damaged.write_bytes(b"this is a text")
    message = message_of(lambda: list(batches(test_loader(cfg, samples))))
    assert str(damaged) in message and "MODEL.SLIM_SCORE" in message and "tools/make_masks.py" in message
    assert "\n" not in message
