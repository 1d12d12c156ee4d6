"""Decoding and verifying images."""
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from triplets import FIRST, a_text, config, cut_short, head_alone, images_of, message_of, zero_bytes

from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.images import decode, decode_triplet, verify


@pytest.mark.parametrize("damage", [zero_bytes, a_text, cut_short, head_alone])
def test_a_damaged_image_is_reported_by_name(own_root, damage):
    path = images_of(own_root, modality="NI") / FIRST
    damage(path)
    message = message_of(decode, str(path))
    assert message.startswith(f"The image {path} cannot be read") and "\n" not in message


def image(path, width, height=40):
    pixels = np.random.default_rng(width).integers(256, size=(height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return str(path), torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize("library", ["simplejpeg", "Pillow"])
def test_jpegs_of_every_kind_have_the_pixels_that_pillow_gives(tmp_path, monkeypatch, library):
    if library == "Pillow":
        monkeypatch.setattr("demo_sdtps.datasets.images.simplejpeg", None)
    else:
        pytest.importorskip("simplejpeg")
    pixels = np.random.default_rng(0).integers(256, size=(41, 23, 3), dtype=np.uint8)
    path = tmp_path / "image.jpg"
    kinds = [(mode, {"subsampling": subsampling, "progressive": progressive, "quality": quality})
             for mode in ("RGB", "L") for subsampling in (0, 1, 2) for progressive in (False, True) for quality in (30, 95)]
    for size in ((41, 23), (1, 1), (16, 8), (3, 17)):
        for mode, how in [*kinds, ("RGB", {"keep_rgb": True}), ("CMYK", {})]:
            Image.fromarray(pixels[:size[0], :size[1]]).convert(mode).save(path, **how)
            found = decode(str(path))
            assert found.dtype == torch.uint8 and found.shape == (3, *size)
            assert np.array_equal(found.permute(1, 2, 0).numpy(), np.asarray(Image.open(path).convert("RGB"))), (mode, how)


def test_a_triplet_is_three_images_or_the_thirds_of_one(tmp_path):
    paths, expected = zip(*(image(tmp_path / f"{width}.png", width) for width in (5, 7, 9)), strict=True)
    for ours, theirs in zip(decode_triplet(paths), expected, strict=True):
        assert torch.equal(ours, theirs)
    path, whole = image(tmp_path / "whole.png", 12)
    for number, part in enumerate(decode_triplet((path,))):
        assert torch.equal(part, whole[:, :, 4 * number:4 * number + 4])




def test_verify_lists_all_damaged_images_and_no_other(own_root):
    samples = read_splits(config(own_root), ("train",))["train"]
    verify([path for sample in samples for path in sample.paths])
    damaged = [Path(samples[3].paths[1]), Path(samples[17].paths[0]), Path(samples[40].paths[2])]
    for path, damage in zip(damaged, (zero_bytes, a_text, cut_short), strict=True):
        damage(path)
    head, *lines = message_of(verify, [path for sample in samples for path in sample.paths]).splitlines()
    assert head.startswith("3 of 144 images") and "replace them or remove their triplets" in head
    assert len(lines) == 3
    assert all(any(str(path) in line for line in lines) for path in damaged)
    assert sum("it is empty" in line for line in lines) == 1
