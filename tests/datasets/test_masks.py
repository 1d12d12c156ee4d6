"""Foreground masks of a triplet, from their files to the batch, and flip and crop that are drawn once per triplet."""

import random
import re
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from layouts import WRITERS, pixels, save
from numeric import assert_close, shift_seed
from PIL import Image
from triplets import PLAIN, SCALED, catch_message, config, normalise, random_image

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import batches, make_decoder, test_loader, train_loader
from demo_sdtps.datasets.masks import mask_path, mask_paths, write_masks
from demo_sdtps.datasets.transforms import TrainTransform

JOINT = ["INPUT.JOINT_AUGMENTATION", "True", "MODEL.SLIM_BLOCKS", "[2]", "MODEL.SLIM_KEEP", "[0.5]"]
SUPERVISED = [*JOINT, "MODEL.SLIM_SCORE", "supervised"]
STILL = [*SUPERVISED, "INPUT.PROB", "0.0", "INPUT.PADDING", "0"]
"""Without flip and crop, which a mask shares with its images."""


def read_train(cfg):
    return read_splits(cfg, ("train",))["train"]


def epoch(root, *opts):
    cfg = config(root, *opts)
    return list(batches(train_loader(cfg, read_train(cfg))))


def test_joint_augmentation_is_the_recorded_geometry_of_each(tiny_root):
    """Flip, padding and cropping one after the other, by what the recorded seed draws."""
    images = [random_image(seed=seed) for seed in range(3)]
    mask = random_image(seed=3)[:1]
    transform = TrainTransform(
        config(tiny_root, *JOINT, "INPUT.RE_PROB", "0.0", "INPUT.PADDING", "4")
    )
    for seed in range(shift_seed(), shift_seed(20)):
        draw = random.Random(seed)
        flip, down, right = draw.random() < 0.5, draw.randint(-4, 4), draw.randint(-4, 4)

        def slow(image, flip=flip, top=4 - down, left=4 - right):
            image = image.flip(2) if flip else image
            return F.pad(image, (4,) * 4)[:, top : top + 32, left : left + 16]

        actual, actual_mask = transform(images, mask, random.Random(seed))
        for image, original in zip(actual, images, strict=True):
            assert_close(image, normalise(slow(original)), *SCALED)
        assert_close(actual_mask, slow(mask).double() / 255, 1)


def test_erasing_stays_apart_and_spares_the_mask(tiny_root):
    transform = TrainTransform(config(tiny_root, *JOINT, *PLAIN[:-1], "1.0"))
    white = torch.full((3, 32, 16), 255, dtype=torch.uint8)
    images, mask = transform([white, white, white], white[:1], random.Random(0))
    erased = [(image != 1).any(0) for image in images]
    assert all(area.any() and not area.all() for area in erased)
    assert not torch.equal(erased[0], erased[1]) and not torch.equal(erased[1], erased[2])
    assert torch.equal(mask, torch.ones(1, 32, 16))


def read_masks(cfg, samples):
    """As training reads them, in the order of the samples."""
    dataset = train_loader(cfg, samples).dataset
    return torch.stack([dataset[index, 0][1] for index in range(len(samples))])


def test_batches_have_the_masks_of_their_files(tiny_root):
    cfg = config(tiny_root, *STILL)
    samples = read_train(cfg)
    masks = read_masks(cfg, samples)
    files = [sample.paths[0].replace("/RGB/", "/MASK/")[: -len("jpg")] for sample in samples]
    expected = np.stack([np.asarray(Image.open(f"{file}png")) for file in files])
    assert masks.dtype == torch.float32 and masks.shape == (48, 1, 32, 16)
    assert_close(masks[:, 0], expected / 255, 1)
    # evaluation reads none
    assert all(batch.mask is None for batch in batches(test_loader(cfg, samples)))
    for batch in epoch(tiny_root, *SUPERVISED):
        assert list(batch.images) == [*MODALITIES] and batch.mask.shape == (8, 1, 32, 16)
        assert 0 < batch.mask.mean() < 1 and batch.mask.min() == 0 and batch.mask.max() == 1


def test_a_mask_of_another_size_is_resized_bilinearly(own_root):
    cfg = config(own_root, *STILL)
    samples = read_train(cfg)
    large = random_image(64, 48)[:1]
    for sample in samples:
        Image.fromarray(large[0].numpy()).save(mask_path(sample))
    expected = F.interpolate(
        large[None].double(), (32, 16), mode="bilinear", antialias=True, align_corners=False
    )
    # Rounding to whole levels in each of the two passes is worth half a level.
    assert (read_masks(cfg, samples) - expected / 255).abs().max() < 1.5 / 255


def test_masks_of_images_side_by_side(tmp_path):
    """In MASK/ beside the images; as large as one modality."""
    samples = WRITERS["RGBNT100"](tmp_path)["train"]
    cfg = config(tmp_path, *STILL, "DATASETS.NAMES", "RGBNT100", "MODEL.SIE_CAMERA", "False")
    folder = tmp_path / "RGBNT100" / "rgbir" / "bounding_box_train" / "MASK"
    assert str(folder) in catch_message(train_loader, cfg, samples)
    folder.mkdir()
    for level, sample in enumerate(samples):
        Image.new("L", (256, 128), level).save(folder / f"{Path(sample.paths[0]).stem}.png")
    masks = read_masks(cfg, samples)
    levels = torch.arange(len(samples)).double() / 255
    assert_close(masks, levels[:, None, None, None].expand(-1, 1, 32, 16), 1)


def test_missing_masks_are_one_sentence(own_root):
    cfg = config(own_root, *SUPERVISED)
    samples = read_train(cfg)
    gone = mask_path(samples[5])
    gone.unlink()
    message = catch_message(train_loader, cfg, samples)
    assert f"the mask {gone} is missing" in message and "demo-sdtps masks" in message


def test_masks_in_nested_folders_are_no_images_and_each_of_one_triplet(tmp_path):
    for name in ("one/a", "two/a"):
        save(tmp_path / "RGB" / f"{name}.png", pixels(1, 1, "RGB", 16, 32))
    cfg = config(tmp_path, "DATASETS.NAMES", "Images")
    samples = read_splits(cfg, ("query",))["query"]
    write_masks(samples[:1], lambda image: torch.ones(image.shape[1:]), make_decoder(cfg), False)
    assert read_splits(cfg, ("query",))["query"] == samples and len(samples) == 2
    assert re.search(
        r"RGB/one/a\.png and .*RGB/two/a\.png would have one mask",
        catch_message(mask_paths, samples),
    )
